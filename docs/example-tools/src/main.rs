//! Example agents' tools: a calculator, a sales report, a writer of files, and five readers of project data. They work
//! in the folder `data` below the current one, each tenant in a folder of its own.

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
