//! Errors that name the invalid field of a declaration.

use tickfleet_tools::DeclarationError;

/// Returns a function that makes the error for an invalid value of the field `http.<name>`.
pub(super) fn field(name: impl Into<String>) -> impl FnOnce(String) -> DeclarationError {
    let field = format!("http.{}", name.into());
    move |why| DeclarationError::Field { field, why }
}
