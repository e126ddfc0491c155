//! The program `nodescope`.

fn main() -> std::process::ExitCode {
    nodescope::run()
}
