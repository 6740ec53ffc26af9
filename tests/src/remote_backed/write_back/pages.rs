//! Pages of a bucket with dirty writes are as full as those of any other bucket.

use http::Method;

use super::{BUCKET, hold_writes, put, release_writes, runtime, write_back_bench};
use crate::content::TestContent;
use crate::s3::{encode, full_body};

#[test]
fn pages_are_full_with_any_dirty_writes() {
    let bench = write_back_bench();
    runtime().block_on(async {
        for n in 0..60 {
            bench.put(&format!("k{n:03}"), TestContent { id: 1, length: 10 }).await;
        }
        hold_writes(&bench);
        let client = bench.gateway.client();
        // Runs of deletes shorter and longer than a page, with new keys between them.
        let gone = |n: u64| !n.is_multiple_of(4) || (20..40).contains(&n);
        for n in (0..60).filter(|n| gone(*n)) {
            client.delete(BUCKET, &format!("k{n:03}")).await.expect("acknowledged");
        }
        for n in [5, 30, 59] {
            put(&client, &format!("k{n:03}-new"), n, 20).await;
        }
        let mut expected: Vec<String> = (0..60).filter(|n| !gone(*n)).map(|n| format!("k{n:03}")).collect();
        expected.extend([5, 30, 59].map(|n| format!("k{n:03}-new")));
        expected.sort();
        for max in [1, 2, 3, 5, 7, 13, 100] {
            let (mut pages, mut marker) = (Vec::new(), String::new());
            loop {
                let query = format!("/{BUCKET}?list-type=2&max-keys={max}&start-after={}", encode(&marker));
                let body = client.call(Method::GET, &query, &[], full_body("")).await.expect("listed").body;
                let text = String::from_utf8_lossy(&body).into_owned();
                let keys = text.split("<Key>").skip(1).map(|rest| rest.split('<').next().unwrap_or(""));
                let page: Vec<String> = keys.map(str::to_owned).collect();
                let has_more = text.contains("<IsTruncated>true");
                assert!(!has_more || page.len() == max, "{} of {max}: {page:?}", page.len());
                marker = page.last().cloned().unwrap_or_default();
                pages.push(page);
                if !has_more {
                    break;
                }
            }
            assert_eq!(pages.concat(), expected, "{max} a page");
        }
        release_writes(&bench);
    });
}
