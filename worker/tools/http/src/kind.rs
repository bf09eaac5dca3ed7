use std::sync::Arc;

use serde_json::Value;
use tickfleet_config::tools::HttpDef;
use tickfleet_model::Effect;
use tickfleet_tools::{DeclarationError, DeclaredHandler, Environment, ToolKind};

use super::{HttpClients, HttpTool};

#[derive(Debug)]
pub struct HttpKind {
    environment: Environment,
    clients: HttpClients,
}

impl HttpKind {
    #[must_use]
    pub fn new(environment: Environment) -> Self {
        Self { environment, clients: HttpClients::default() }
    }
}

impl ToolKind<HttpDef> for HttpKind {
    fn make(&self, def: &HttpDef, _: &Value, effect: Effect) -> Result<DeclaredHandler, DeclarationError> {
        let tool = HttpTool::new(def, effect, &self.environment, &self.clients)?;
        let configured = tool.missing_secret().is_none();
        Ok(DeclaredHandler { handler: Arc::new(tool), configured })
    }
}
