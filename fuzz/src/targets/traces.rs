//! Traces of accesses, and logs that are imported as traces. Properties: any bytes decode to accesses
//! within bounds or to an error; accesses that were read are read again after writing.

use crate::input::Input;
use mlgw_policies::Access;
use mlgw_policies::trace::import::{LogFormat, LogImport};
use mlgw_policies::trace::{TraceReader, TraceWriter};

/// The input: a line with the format (`trace`, `s3`, anything else for mlgw's own log), then the data.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    match input.line() {
        b"trace" => trace(input.0),
        b"s3" => log(LogFormat::S3, input.0),
        _ => log(LogFormat::Own, input.0),
    }
}

fn trace(data: &[u8]) {
    let mut reader = TraceReader::new();
    let (first, second) = data.split_at(data.len() / 2);
    let mut out = Vec::new();
    let mut writer = TraceWriter::new(0, &mut out);
    let mut count = 0_u64;
    for half in [first, second] {
        reader.push(half);
        while let Ok(Some(access)) = reader.read() {
            check(&access);
            count += u64::from(writer.write(&access, &mut out));
        }
    }
    writer.flush(&mut out);
    let mut again = TraceReader::new();
    again.push(&out);
    let mut read = 0;
    while again.read().expect("what was written is right").is_some() {
        read += 1;
    }
    assert_eq!(read, count);
}

fn log(log: LogFormat, data: &[u8]) {
    let mut import = LogImport::new(log);
    for line in String::from_utf8_lossy(data).lines() {
        import.line(line);
    }
    import.end();
    let mut last_us = 0;
    while let Some(imported) = import.take() {
        let access = imported.access();
        check(&access);
        assert!(access.at_us >= last_us, "in the order of time");
        last_us = access.at_us;
    }
}

fn check(access: &Access<'_>) {
    assert!(access.key.len() <= 1024);
    assert!(access.range.start <= access.range.end);
}
