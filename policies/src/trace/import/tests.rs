//! Tests that lines of both logs become the right accesses, and that all other lines are accounted for.

use super::{BadLine, ImportReport, ImportedAccess, LogFormat, LogImport, REORDERED_LINES_MAX};
use crate::access::Op;
use proptest::prelude::*;

/// A line of an S3 server access log.
fn s3(second: u64, operation: &str, key: &str, uri: &str, status: &str, sent: &str, size: &str) -> String {
    format!(
        "79a59df900b949e55d96a1e698fbaced mybucket [06/Feb/2019:00:{:02}:{:02} +0000] 192.0.2.3 \
         arn:aws:iam::1:user/a 3E57427F3EXAMPLE {operation} {key} \"{uri} HTTP/1.1\" {status} - {sent} \
         {size} 70 10 \"-\" \"S3Console/0.4 (a \"b\") x\" - s9lzHYrFp76ZVxRcpX9= SigV4 \
         ECDHE-RSA-AES128-GCM-SHA256 AuthHeader mybucket.s3.us-west-1.amazonaws.com TLSV1.2 - -",
        second / 60,
        second % 60
    )
}

/// A line of the mlgw access log.
fn own(second: u64, operation: &str, path: &str, status: u16, bytes_in: u64, bytes_out: u64) -> String {
    format!(
        "{{\"time\":\"2026-11-20T11:36:{second:02}.250Z\",\"request_id\":\"r\",\
         \"from\":\"10.0.0.1:4{second}\",\"access_key\":\"AK\",\"method\":\"M\",\
         \"operation\":\"{operation}\",\"bucket\":\"b\",\"path\":\"{path}\",\"status\":{status},\
         \"bytes_in\":{bytes_in},\"bytes_out\":{bytes_out},\"first_byte_ms\":0.1,\"took_ms\":0.5,\
         \"user_agent\":\"a \\\"q\\\" é\"}}"
    )
}

fn import(log: LogFormat, lines: &[String]) -> (Vec<ImportedAccess>, ImportReport) {
    let mut import = LogImport::new(log);
    let mut found = Vec::new();
    for line in lines {
        import.line(line);
        found.extend(std::iter::from_fn(|| import.take()));
    }
    import.end();
    found.extend(std::iter::from_fn(|| import.take()));
    (found, import.report().clone())
}

fn summary(found: &[ImportedAccess]) -> Vec<(Op, &str, u64, std::ops::Range<u64>)> {
    found.iter().map(|access| (access.op, access.key.as_str(), access.size, access.range.clone())).collect()
}

#[test]
fn lines_of_an_s3_log_become_accesses() {
    let lines = [
        s3(1, "REST.PUT.OBJECT", "a/b", "PUT /mybucket/a/b", "200", "-", "1000"),
        s3(2, "REST.GET.OBJECT", "a/b", "GET /mybucket/a/b", "200", "1000", "1000"),
        s3(3, "REST.HEAD.OBJECT", "a/b", "HEAD /mybucket/a/b", "200", "-", "1000"),
        s3(4, "REST.GET.OBJECT", "none", "GET /mybucket/none", "404", "300", "-"),
        s3(5, "REST.GET.BUCKET", "-", "GET /mybucket?prefix=", "200", "300", "-"),
        s3(6, "REST.PUT.PART", "big", "PUT /big?partNumber=1&uploadId=x", "200", "-", "700"),
        s3(7, "REST.PUT.PART", "big", "PUT /big?partNumber=2&uploadId=x", "200", "-", "500"),
        s3(8, "REST.POST.UPLOAD", "big", "POST /big?uploadId=x", "200", "300", "-"),
        s3(9, "BATCH.DELETE.OBJECT", "a/b", "POST /mybucket?delete", "204", "-", "1000"),
        s3(10, "S3.EXPIRE.OBJECT", "big", "-", "-", "-", "1200"),
    ];
    let (found, report) = import(LogFormat::S3, &lines);
    assert_eq!(
        summary(&found),
        [
            (Op::Write, "a/b", 1000, 0..1000),
            (Op::Read, "a/b", 1000, 0..1000),
            (Op::Write, "big", 1200, 0..1200),
            (Op::Delete, "a/b", 1000, 0..1000),
            (Op::Delete, "big", 1200, 0..1200),
        ]
    );
    assert_eq!((report.lines, report.imported, report.skipped, report.bad), (10, 5, 5, 0));
    // 2019-02-06T00:00:01Z.
    assert_eq!(found[0].at_us, 1_549_411_201_000_000);
    assert!(found.iter().all(|access| access.caller == found[0].caller && access.bucket == found[0].bucket));
}

#[test]
fn partial_reads_follow_each_other() {
    let part = |second, sent: &str| s3(second, "REST.GET.OBJECT", "k", "GET /k", "206", sent, "100");
    let lines = [part(1, "40"), part(2, "40"), part(3, "20"), part(4, "40"), part(5, "90")];
    let ranges: Vec<_> = import(LogFormat::S3, &lines).0.into_iter().map(|access| access.range).collect();
    assert_eq!(ranges, [0..40, 40..80, 80..100, 0..40, 0..90]);
}

#[test]
fn keys_are_decoded_once_or_twice() {
    let key = |key: &str, uri: &str| {
        let lines = [s3(1, "REST.GET.OBJECT", key, uri, "200", "1", "1")];
        import(LogFormat::S3, &lines).0[0].key.clone()
    };
    assert_eq!(key("a%20b/%C3%A4", "GET /mybucket/a%20b/%C3%A4"), "a b/ä");
    assert_eq!(key("a%2520b", "GET /mybucket/a%20b?x=y"), "a b");
    assert_eq!(key("100%25", "GET /100%25"), "100%");
}

#[test]
fn lines_of_the_mlgw_log_become_accesses() {
    let lines = [
        own(1, "PutObject", "/b/x%20y", 200, 500, 0),
        own(2, "GetObject", "/b/x%20y", 206, 0, 300),
        own(3, "GetObject", "/b/x%20y", 206, 0, 200),
        own(4, "GetObject", "/x%20y", 200, 0, 500),
        own(5, "GetObject", "/b/unknown", 206, 0, 300),
        own(6, "GetObject", "/b/unknown", 206, 0, 300),
        own(6, "GetObject", "/b/unknown", 206, 0, 100),
        own(6, "GetObject", "/b/unknown", 206, 0, 300),
        own(7, "UploadPart", "/b/big", 200, 700, 0),
        own(8, "UploadPart", "/b/big", 200, 100, 0),
        own(9, "CompleteMultipartUpload", "/b/big", 200, 90, 300),
        own(10, "GetObject", "/b/x%20y", 304, 0, 0),
        own(11, "ListObjectsV2", "/b", 200, 0, 1000),
        own(12, "DeleteObject", "/b/big", 204, 0, 0),
    ];
    let (found, report) = import(LogFormat::Own, &lines);
    assert_eq!(
        summary(&found),
        [
            (Op::Write, "x y", 500, 0..500),
            (Op::Read, "x y", 500, 0..300),
            (Op::Read, "x y", 500, 300..500),
            (Op::Read, "x y", 500, 0..500),
            (Op::Read, "unknown", 300, 0..300),
            (Op::Read, "unknown", 600, 300..600),
            (Op::Read, "unknown", 700, 600..700),
            (Op::Read, "unknown", 700, 0..300),
            (Op::Write, "big", 800, 0..800),
            (Op::Delete, "big", 800, 0..800),
        ]
    );
    assert_eq!((report.imported, report.skipped, report.bad), (10, 4, 0));
    assert!(found.iter().all(|access| access.caller == found[0].caller), "ports do not distinguish callers");
}

#[test]
fn bad_lines_are_counted_and_the_first_are_kept() {
    let mut lines = vec![
        s3(1, "REST.GET.OBJECT", "k", "GET /k", "200", "5", "5"),
        "nonsense".to_owned(),
        String::new(),
        s3(2, "REST.GET.OBJECT", "k", "GET /k", "200", "x", "5"),
        s3(3, "REST.GET.OBJECT", "k", "GET /k", "200", "5", "5").replace("Feb", "Fab"),
        s3(3, "REST.GET.OBJECT", "%FF", "GET /%FF", "200", "5", "5"),
    ];
    lines.extend(std::iter::repeat_n("a b".to_owned(), 10));
    let (found, report) = import(LogFormat::S3, &lines);
    assert_eq!((found.len(), report.lines, report.imported, report.bad), (1, 15, 1, 14));
    let expected = [
        (2, BadLine::Missing("the bucket")),
        (4, BadLine::Field("the bytes sent")),
        (5, BadLine::Field("the time")),
        (6, BadLine::Field("the key")),
        (7, BadLine::Missing("the time")),
    ];
    assert_eq!(report.first_bad, expected);
    assert_eq!(import(LogFormat::Own, &["{}".to_owned()]).1.first_bad, [(1, BadLine::Json)]);
}

#[test]
fn lines_are_sorted_by_time() {
    let line = |second| s3(second, "REST.GET.OBJECT", "k", "GET /k", "200", "5", "5");
    let (found, report) = import(LogFormat::S3, &[line(9), line(3), line(7), line(3)]);
    let seconds: Vec<_> = found.iter().map(|access| access.at_us / 1_000_000 % 100).collect();
    assert_eq!((seconds, report.late), (vec![3, 3, 7, 9], 0));
    // A line that arrives after the window of held-back lines is late.
    let mut lines = vec![line(50); REORDERED_LINES_MAX + 100];
    lines.push(line(10));
    let (found, report) = import(LogFormat::S3, &lines);
    assert!(found.is_sorted_by_key(|access| access.at_us));
    assert_eq!((found.len(), report.late), (REORDERED_LINES_MAX + 101, 1));
}

proptest! {
    /// Every line is counted as imported, skipped or bad.
    #[test]
    fn any_line_is_accounted_for(
        lines in prop::collection::vec(prop_oneof!["\\PC{0,60}", "[\\[\\]\"{}: a-]{0,40}"], 0..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let whole = s3(1, "REST.GET.OBJECT", "k%20", "GET /k", "206", "5", "5");
        let mut lines = lines;
        lines.push(whole[..cut.index(whole.len())].to_owned());
        for log in [LogFormat::S3, LogFormat::Own] {
            let (found, report) = import(log, &lines);
            prop_assert_eq!(report.lines, report.imported + report.skipped + report.bad);
            prop_assert_eq!(report.imported, found.len() as u64);
        }
    }
}
