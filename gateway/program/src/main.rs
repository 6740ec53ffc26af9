//! The `mlgw` binary: the command line, over an allocator that does not grow with fragmentation
//! when many small requests come and go on all cores.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    mlgw_program::main()
}
