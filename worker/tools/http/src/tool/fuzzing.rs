//! Entry points for fuzz targets that need no network: responses of services, and requests made from arguments.

use std::time::Duration;

use reqwest::Response;
use reqwest::header::HeaderMap;
use secrecy::ExposeSecret;
use tickfleet_tools::{CallContext, Secrets, ToolFailure, ToolOutput};

use super::HttpTool;
use crate::oauth2;
use crate::template::{Arguments, Values};

#[derive(Debug, Clone)]
pub struct SentRequest {
    pub url: String,
    pub headers: HeaderMap,
    pub body: Option<String>,
}

pub async fn interpret(tool: &HttpTool, answer: Response, secrets: &Secrets) -> Result<ToolOutput, ToolFailure> {
    tool.rules.interpret(answer.into(), secrets).await
}

pub fn request(
    tool: &HttpTool,
    context: &CallContext,
    arguments: &str,
    secrets: &Secrets,
) -> Result<SentRequest, String> {
    let arguments: Arguments = serde_json::from_str(arguments).map_err(|error| error.to_string())?;
    let request = tool.request(context, &Values { arguments: &arguments, secrets })?;
    Ok(SentRequest {
        url: request.url.into(),
        headers: request.headers,
        body: request.body.map(|body| String::from_utf8_lossy(&body).into_owned()),
    })
}

pub async fn parse_grant(answer: Response) -> Result<(String, Duration), ToolFailure> {
    let granted = oauth2::parse_grant(answer).await?;
    Ok((granted.token.expose_secret().to_owned(), granted.life))
}
