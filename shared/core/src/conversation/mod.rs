//! Conversations: sessions of a user with an agent, and messages between agents.
//!
//! | Key | Holds |
//! |---|---|
//! | record `session:<tenant>:<session>` | agent and exchanges; the messages are parts `u<number>` and `a<number>` |
//! | record `mailbox:<tenant>:<agent>` | messages of other agents; the text of each is a part, by the message's ID |
//!
//! Both records expire some time after their last message.

mod mailbox;
mod session;

pub use mailbox::{Mail, MailState, Mailbox, ReceiveMessages, ReceivedMessage, SendMessage, SendResult, mailbox_key};
pub use session::{AddMessage, Answer, Exchange, MessageResult, Session, Side, message_part, session_key};
