//! The `mlgw` binary: the command line, over an allocator that resists fragmentation by many small requests
//! on all cores.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    mlgw_program::main()
}
