//! The place where a declaration is wrong.

use tickfleet_tools::DeclarationError;

/// Says that the field `http.<name>` of a declaration has a value that cannot work.
pub(super) fn field(name: impl Into<String>) -> impl FnOnce(String) -> DeclarationError {
    let field = format!("http.{}", name.into());
    move |why| DeclarationError::Field { field, why }
}
