//! Example tools: a calculator, a sales report, a tool that writes files, and five tools that read project data. The
//! data is in the folder `data` of the current folder, with one folder for each tenant.

mod calculator;
mod files;
mod folder;
mod projects;
mod sales;

use tickfleet::Program;

fn main() -> std::process::ExitCode {
    let tools = [calculator::calculator(), sales::sales_report(), files::write_file()];
    tools.into_iter().chain(projects::all()).fold(Program::new(), Program::tool).main()
}
