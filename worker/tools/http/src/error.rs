use tickfleet_tools::DeclarationError;

pub(super) fn field(name: impl Into<String>) -> impl FnOnce(String) -> DeclarationError {
    let field = format!("http.{}", name.into());
    move |why| DeclarationError::Field { field, why }
}
