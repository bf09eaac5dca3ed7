//! `search_my_memories`: searches all sources of an agent concurrently, each with its own deadline.

use std::collections::HashMap;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickfleet_model::{AgentId, TenantId, TurnId, limits};
use tickfleet_store::{Store, StoreError, TurnName};
use tickfleet_tools::wording;

use crate::lexicon::Lexicon;
use crate::search::{Knowledge, Ranking, rounded};
use crate::words::{query_words, words};

/// The limit of one source. After this time, the source's findings are left out.
const SOURCE_DEADLINE: Duration = Duration::from_secs(2);
const CONSIDERED: usize = 50;
const STORY_BYTES_MAX: usize = 2_000;

/// A source to search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The agent's notes.
    Memory,
    /// The agent's calls.
    Audit,
    /// The agent's ended turns, and the ended tasks that it worked on.
    Workflows,
    /// The knowledge base of the agent's tenant.
    Kb,
}

impl Source {
    pub(crate) const ALL: [Self; 4] = [Self::Memory, Self::Audit, Self::Workflows, Self::Kb];
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Recalled {
    /// The source: memory, audit, workflows or kb.
    pub source: Source,
    /// The text of the finding.
    pub text: String,
    /// How well it fits, 0 to 1.
    pub score: f32,
    /// When it was noted or when it ended, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The turn or task, the memory's id, or the passage's title and origin.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub from: String,
    /// A key that findings about the same subject share: their turn or task.
    #[serde(skip)]
    #[schemars(skip)]
    same: Option<String>,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Recollection {
    /// The findings that fit best, best first.
    pub results: Vec<Recalled>,
    /// How passages of the knowledge base were ranked; all other findings are ranked by words.
    pub ranking: Ranking,
    /// Sources that failed or did not respond in time: search again for their findings.
    pub incomplete: Vec<Source>,
}

type SourceResult = Result<(Vec<Recalled>, Ranking), StoreError>;

#[derive(Clone, Copy)]
struct RecallQuery<'a> {
    knowledge: &'a Knowledge,
    store: &'a Store,
    tenant: &'a TenantId,
    agent: &'a AgentId,
    query: &'a str,
    words: &'a [String],
}

impl Knowledge {
    /// An empty list of `sources` means all sources. A failed or slow source does not affect the others.
    pub async fn recall(
        &self,
        store: &Store,
        tenant: &TenantId,
        agent: &AgentId,
        query: &str,
        sources: &[Source],
        most: usize,
    ) -> Recollection {
        let query = &*wording::cut(query, limits::QUERY_BYTES_MAX);
        let words = query_words(query);
        let asker = RecallQuery { knowledge: self, store, tenant, agent, query, words: &words };
        let wanted = Source::ALL.into_iter().filter(|source| sources.is_empty() || sources.contains(source));
        let searches = wanted.map(|source| (source, asker.search(source))).collect();
        gathered(searches, SOURCE_DEADLINE, most).await
    }
}

async fn gathered(
    searches: Vec<(Source, BoxFuture<'_, SourceResult>)>,
    deadline: Duration,
    most: usize,
) -> Recollection {
    let timed = searches.into_iter().map(|(source, search)| async move {
        match tokio::time::timeout(deadline, search).await {
            Ok(Ok(found)) => (source, Some(found)),
            Ok(Err(error)) => {
                tracing::warn!(?source, %error, "memory source did not respond");
                (source, None)
            }
            Err(_) => (source, None),
        }
    });
    let mut all = Recollection { results: Vec::new(), ranking: Ranking::Words, incomplete: Vec::new() };
    for (source, answer) in join_all(timed).await {
        match answer {
            Some((found, ranking)) => {
                all.results.extend(found);
                if ranking == Ranking::Meaning {
                    all.ranking = ranking;
                }
            }
            None => all.incomplete.push(source),
        }
    }
    all.results.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| b.at.cmp(&a.at)));
    keep_first_of_same(&mut all.results);
    all.results.truncate(most);
    all
}

/// Findings are the same if they have the same text or the same turn.
fn keep_first_of_same(results: &mut Vec<Recalled>) {
    let mut seen = std::collections::HashSet::new();
    results.retain(|found| {
        let text: String = found.text.split_whitespace().flat_map(|word| [word, " "]).collect();
        let is_new_text = seen.insert(text.to_lowercase());
        let is_new_subject = found.same.as_ref().is_none_or(|same| seen.insert(format!("\0{same}")));
        is_new_text && is_new_subject
    });
}

impl<'a> RecallQuery<'a> {
    fn search(self, source: Source) -> BoxFuture<'a, SourceResult> {
        match source {
            Source::Memory => Box::pin(self.memories()),
            Source::Audit => Box::pin(self.calls()),
            Source::Workflows => Box::pin(self.workflows()),
            Source::Kb => Box::pin(self.passages()),
        }
    }

    async fn memories(self) -> SourceResult {
        let notes = self.knowledge.notes.of(self.store, self.tenant, self.agent).await?;
        let found = notes.lexicon.find(self.words, CONSIDERED, |_| true);
        let found = found.into_iter().map(|(at, score)| Recalled {
            source: Source::Memory,
            text: notes.memories[at].text.clone(),
            score: rounded(score),
            at: rfc3339(notes.memories[at].at_ms),
            from: notes.memories[at].id.clone(),
            same: None,
        });
        Ok((found.collect(), Ranking::Words))
    }

    async fn calls(self) -> SourceResult {
        let actions = self.knowledge.logs.of_agent(self.store, self.tenant, self.agent).await?;
        let actions: Vec<_> = actions.into_iter().filter(|action| !action.is_task).collect();
        let found =
            self.best(actions.iter().map(|action| words(&action.text))).into_iter().map(|(at, score)| Recalled {
                source: Source::Audit,
                text: actions[at].text.clone(),
                score,
                at: Some(actions[at].at.clone()),
                from: actions[at].turn.clone(),
                same: Some(actions[at].turn.clone()),
            });
        Ok((found.collect(), Ranking::Words))
    }

    /// The text of a turn or task is made from its calls.
    async fn workflows(self) -> SourceResult {
        let actions = self.knowledge.logs.of_agent(self.store, self.tenant, self.agent).await?;
        let (mut stories, mut of_turn): (Vec<Recalled>, HashMap<&str, usize>) = (Vec::new(), HashMap::new());
        for action in &actions {
            let text = if action.is_task { &action.text } else { &action.brief };
            match of_turn.get(action.turn.as_str()) {
                // The newest entry comes first, so the first entry of a turn is its last call.
                Some(story) => {
                    stories[*story].text = wording::cut(&format!("{text}\n{}", stories[*story].text), STORY_BYTES_MAX);
                }
                None => {
                    of_turn.insert(&action.turn, stories.len());
                    stories.push(Recalled {
                        source: Source::Workflows,
                        text: text.clone(),
                        score: 0.0,
                        at: Some(action.at.clone()),
                        from: action.turn.clone(),
                        same: Some(action.turn.clone()),
                    });
                }
            }
        }
        let best = self.best(stories.iter().map(|story| words(&story.text)));
        let name =
            |story: &Recalled| TurnId::new(&story.from).ok().map(|turn| TurnName { tenant: self.tenant.clone(), turn });
        let found: Vec<(TurnName, Recalled)> = best
            .into_iter()
            .filter_map(|(at, score)| Some((name(&stories[at])?, Recalled { score, ..stories[at].clone() })))
            .collect();
        let names: Vec<TurnName> = found.iter().map(|(name, _)| name.clone()).collect();
        let under_way = self.store.are_under_way(&names).await?;
        let ended = found.into_iter().zip(under_way).filter(|(_, under_way)| !under_way);
        Ok((ended.map(|((_, story), _)| story).collect(), Ranking::Words))
    }

    async fn passages(self) -> SourceResult {
        let found = self.knowledge.search(self.store, self.tenant, self.query, None, CONSIDERED).await?;
        let passages = found.passages.into_iter().map(|passage| Recalled {
            source: Source::Kb,
            text: passage.text,
            score: passage.fit,
            at: None,
            from: format!("{} ({})", passage.title, passage.source),
            same: None,
        });
        Ok((passages.collect(), found.ranking))
    }

    /// Returns the indexes and scores of the texts, best first.
    fn best(self, texts: impl Iterator<Item = Vec<String>>) -> Vec<(usize, f32)> {
        let mut lexicon = Lexicon::default();
        for text in texts {
            lexicon.add(&text);
        }
        let mut found = lexicon.find(self.words, CONSIDERED, |_| true);
        found.iter_mut().for_each(|(_, score)| *score = rounded(*score));
        found
    }
}

/// `ms` is in milliseconds since the epoch.
pub(crate) fn rfc3339(ms: i64) -> Option<String> {
    let time = chrono::DateTime::from_timestamp_millis(ms)?;
    Some(time.to_rfc3339_opts(chrono::SecondsFormat::Secs, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: Source, text: &str, score: f32, same: Option<&str>) -> Recalled {
        let text = text.to_owned();
        let same = same.map(str::to_owned);
        Recalled { source, text, score, at: None, from: String::new(), same }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_or_failed_source_is_reported_as_incomplete() {
        let quick = found(Source::Memory, "quick", 0.5, None);
        let searches: Vec<(Source, BoxFuture<'_, SourceResult>)> = vec![
            (Source::Memory, Box::pin(async { Ok((vec![quick.clone()], Ranking::Words)) })),
            (Source::Audit, Box::pin(std::future::pending())),
            (Source::Kb, Box::pin(async { Err(StoreError::StateLost("gone".into())) })),
        ];
        let all = gathered(searches, SOURCE_DEADLINE, 9).await;
        assert_eq!(all.results, [quick]);
        assert_eq!(all.incomplete, [Source::Audit, Source::Kb]);
    }

    #[tokio::test]
    async fn duplicate_findings_are_reduced_to_the_best_one() {
        let searches: Vec<(Source, BoxFuture<'_, SourceResult>)> = vec![
            (
                Source::Memory,
                Box::pin(async { Ok((vec![found(Source::Memory, "The  sky is blue", 0.3, None)], Ranking::Words)) }),
            ),
            (
                Source::Kb,
                Box::pin(async { Ok((vec![found(Source::Kb, "the sky\nis blue", 0.7, None)], Ranking::Words)) }),
            ),
            (
                Source::Audit,
                Box::pin(async {
                    let two =
                        vec![found(Source::Audit, "a", 0.2, Some("t1")), found(Source::Audit, "b", 0.1, Some("t1"))];
                    Ok((two, Ranking::Words))
                }),
            ),
        ];
        let all = gathered(searches, SOURCE_DEADLINE, 9).await;
        let texts: Vec<&str> = all.results.iter().map(|found| found.text.as_str()).collect();
        assert_eq!(texts, ["the sky\nis blue", "a"]);
    }
}
