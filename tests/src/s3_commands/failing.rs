//! Exit statuses, refused names, aborted uploads, and faults between client and server.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::time::Duration;

use mlgw_common::time::{Instant, block_for};
use rustix::process::{Pid, Signal, kill_process};

use super::{BUCKET, CommandHost, CommandResult, MIB, start, text};
use crate::content::TestContent;
use crate::proxy::{Fault, FaultProxy, Rule};
use crate::s3::full_body;
use crate::server::{ACCESS_KEY, SECRET_KEY, runtime};

#[test]
fn errors_have_their_exit_status_and_the_next_step() {
    let host = CommandHost::with_bucket();
    fs::write(host.path("f"), "file").expect("written");
    for (arguments, status, words) in [
        (&["ls", "s3://absent-bucket"][..], 1, "s3://absent-bucket: no such bucket"),
        (&["cp", "f", "s3://absent-bucket/k"], 1, "no such bucket"),
        (&["cp", "-r", ".", "s3://absent-bucket/k"], 1, "no such bucket"),
        (&["cp", "s3://absent-bucket/k", "s3://commands/k"], 1, "no such bucket"),
        (&["cat", "commands/absent"], 1, "s3://commands/absent: no such object"),
        (&["cp", "s3://commands/absent", "x"], 1, "no such object"),
        (&["cp", "-r", "s3://commands/absent", "x"], 1, "no key begins with this"),
        (&["ls", "commands/absent"], 1, "no key begins with this"),
        (&["cp", "absent", "s3://commands"], 1, "absent: No such file"),
        (&["cp", "f", "g"], 2, "write an object as s3://BUCKET/KEY"),
        (&["cat", "commands"], 2, "s3://BUCKET/KEY"),
        (&["cat", "--range", "9-1", "commands/k"], 2, "the range ends before it begins"),
        (&["ls", "--profile", "p"], 2, ".aws/credentials"),
        (&["ls", "--s3-endpoint", "http://127.0.0.1:1"], 2, "no access key for http://127.0.0.1:1"),
        (&["ls", "--endpoint", "http://127.0.0.1:1"], 2, "--s3-endpoint"),
    ] {
        let CommandResult { stderr, status: ended, .. } = host.run(arguments);
        assert!(ended == Some(status) && stderr.contains(words), "{arguments:?}: {ended:?} {stderr}");
    }
    host.server.stop();
    let stopped = host.setup.command(&["ls"]);
    assert!(stopped.1 == Some(3) && stopped.0.contains("no server runs on"), "{stopped:?}");
}

#[test]
fn keys_are_found_where_aws_users_keep_them() {
    let host = CommandHost::with_bucket();
    let endpoint = format!("http://{}", host.server.s3);
    let run = |variables: &[(&str, &str)]| {
        CommandResult::of(start(host.command(&["ls", "commands"]).envs(variables.iter().copied())))
    };
    let wrong_secret = [("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", "hush-hush")];
    let refused = run(&wrong_secret);
    assert!(
        refused.status == Some(4) && refused.stderr.contains("from AWS_ACCESS_KEY_ID"),
        "{}",
        refused.stderr
    );
    assert!(!refused.stderr.contains("hush"), "{}", refused.stderr);
    let refused = run(&[("AWS_ACCESS_KEY_ID", "UNKNOWN"), ("AWS_SECRET_ACCESS_KEY", "hush-hush")]);
    assert!(
        refused.status == Some(4) && refused.stderr.contains("has no access key UNKNOWN"),
        "{}",
        refused.stderr
    );
    let keys = [("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)];
    let elsewhere = [("AWS_ENDPOINT_URL", &*endpoint), ("MLGW_DATA_DIR", "/nonexistent")];
    assert_eq!(run(&[&keys[..], &elsewhere].concat()).status, Some(0));
    fs::create_dir(host.path(".aws")).expect("made");
    let profile = format!(
        "[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n\
         [wrong]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = hush\n"
    );
    fs::write(host.path(".aws/credentials"), profile).expect("written");
    assert_eq!(run(&elsewhere).status, Some(0), "the default profile");
    assert_eq!(run(&[("AWS_PROFILE", "wrong")]).status, Some(4));
    let dead = [("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")];
    let unreachable = run(&[&keys[..], &dead].concat());
    assert!(
        unreachable.status == Some(3) && unreachable.stderr.contains("cannot reach"),
        "{}",
        unreachable.stderr
    );
    host.server.stop();
}

#[test]
fn an_untrusted_certificate_is_named_by_an_option() {
    let host = CommandHost::with(|setup, dir| {
        let made = || {
            let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
            rcgen::generate_simple_self_signed(names).expect("a certificate")
        };
        let (certificate, key) = (dir.join("certificate.pem"), dir.join("key.pem"));
        let of_server = made();
        fs::write(&certificate, of_server.cert.pem()).expect("written");
        fs::write(&key, of_server.signing_key.serialize_pem()).expect("written");
        fs::write(dir.join("other.pem"), made().cert.pem()).expect("written");
        setup.with("tls.cert", certificate.display()).with("tls.key", key.display())
    });
    let certificate = host.path("certificate.pem");
    let refused = CommandResult::of(start(host.command(&["ls"]).env("AWS_CA_BUNDLE", "/nonexistent.pem")));
    assert!(refused.status == Some(2) && refused.stderr.contains("/nonexistent.pem"), "{}", refused.stderr);
    // Without an option, this is the certificate authority of the host.
    let other = host.path("other.pem");
    let untrusted = CommandResult::of(start(host.command(&["ls"]).env("SSL_CERT_FILE", &other)));
    assert!(untrusted.status == Some(3) && untrusted.stderr.contains("--ca-file"), "{}", untrusted.stderr);
    let untrusted = host.run(&["ls", "--ca-file", text(&other)]);
    assert!(untrusted.status == Some(3) && untrusted.stderr.contains("--ca-file"), "{}", untrusted.stderr);
    host.done(&["bucket", "create", BUCKET]);
    let content = TestContent { id: 1, length: 20 * MIB };
    fs::write(host.path("f"), content.bytes()).expect("written");
    host.done(&["cp", "--ca-file", text(&certificate), "f", "s3://commands/k"]);
    assert!(host.done(&["cat", "--ca-file", text(&certificate), "commands/k"]) == content.bytes());
    host.server.stop();
}

#[test]
fn keys_outside_the_target_are_refused_and_the_others_copied() {
    let host = CommandHost::with_bucket();
    runtime().block_on(async {
        let client = host.server.client();
        for key in ["p/../evil", "p//etc/evil", "p/./evil", "p/good", "p/folder/", "p/a\u{1}\n"] {
            let body = if key.ends_with('/') { "" } else { "body" };
            client.put(BUCKET, key, full_body(body)).await.expect("stored");
        }
    });
    let copied = host.run(&["cp", "-r", "s3://commands/p/", "target/dir"]);
    assert_eq!(copied.status, Some(1), "{}", copied.stderr);
    assert!(copied.stderr.contains("copied 3 objects, 8 B; 3 could not be copied"), "{}", copied.stderr);
    assert!(copied.stderr.contains("s3://commands/p/../evil: the key is no path below"), "{}", copied.stderr);
    assert_eq!(fs::read(host.path("target/dir/good")).expect("copied"), b"body");
    assert!(host.path("target/dir/folder").is_dir() && host.path("target/dir/a\u{1}\n").is_file());
    for outside in ["target/evil", "target/dir/evil", "target/dir/etc"] {
        assert!(!host.path(outside).exists(), "{outside}");
    }
    let named = host.run(&["cp", "s3://commands/p/../evil", "named"]);
    assert!(named.status == Some(0) && host.path("named").is_file(), "a name of its own: {}", named.stderr);
    host.server.stop();
}

#[test]
fn a_closed_pipe_ends_a_command_without_an_error() {
    let host = CommandHost::with_bucket();
    let content = TestContent { id: 1, length: 24 * MIB };
    runtime().block_on(async {
        let client = host.server.client();
        client.put(BUCKET, "large", full_body(content.bytes())).await.expect("stored");
    });
    let mut child = start(&mut host.command(&["cat", "commands/large"]));
    let mut head = [0; 1000];
    child.stdout.take().expect("a pipe").read_exact(&mut head).expect("read");
    assert_eq!(head, content.bytes()[..1000]);
    let ended = CommandResult::of(child);
    assert_eq!((ended.status, &*ended.stderr), (Some(0), ""));
    let mut child = start(&mut host.command(&["ls", "-r", "commands"]));
    drop(child.stdout.take());
    assert_eq!(CommandResult::of(child).status, Some(0));
    host.server.stop();
}

#[test]
fn an_interrupted_upload_is_aborted() {
    let host = CommandHost::with_bucket();
    let mut child = start(host.command(&["cp", "-", "s3://commands/k"]).stdin(Stdio::piped()));
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(&TestContent { id: 1, length: 20 * MIB }.bytes()).expect("written");
    let begun = Instant::now();
    while host.uploads().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no upload was created");
        block_for(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::INT).expect("our child");
    let ended = CommandResult::of(child);
    assert!(ended.status == Some(1) && ended.stderr.contains("interrupted"), "{}", ended.stderr);
    assert_eq!(host.uploads(), [""; 0]);
    drop(stdin);
    host.server.stop();
}

#[test]
fn faults_are_retried_and_wrong_bytes_are_not_kept() {
    let host = CommandHost::with_bucket();
    let content = TestContent { id: 1, length: 40 * MIB };
    fs::write(host.path("f"), content.bytes()).expect("written");
    let proxy = FaultProxy::start(host.server.s3);
    let run = |arguments: &[&str]| host.run_through(&proxy, arguments);
    let slow_down = || Fault::Status { status: 503, code: "SlowDown".to_owned() };
    let on = |fault, method: &str, query: &str| Rule::new(fault).method(method).query(query);
    proxy.set_rules(vec![
        on(slow_down(), "POST", "uploads").times(1),
        on(Fault::CutRequest { after: 1000 }, "PUT", "partNumber=2").times(1),
        on(Fault::CutBeforeAnswer, "PUT", "partNumber=3").times(1),
        on(slow_down(), "POST", "uploadId").times(1),
        on(Fault::CutBeforeAnswer, "POST", "uploadId").times(1),
    ]);
    let copied = run(&["cp", "f", "s3://commands/k"]);
    assert_eq!(copied.status, Some(0), "{}", copied.stderr);
    let completions = proxy.log().iter().filter(|line| line.method == "POST").count();
    assert_eq!(completions, 2 + 3, "two requests create the upload, three complete it");
    let cut = || Fault::CutAnswer { after: 5 * MIB as u64 };
    proxy.set_rules(vec![Rule::new(cut()).method("GET").times(2), Rule::new(slow_down()).times(1)]);
    let printed = run(&["cat", "commands/k"]);
    assert_eq!(printed.status, Some(0), "{}", printed.stderr);
    assert_eq!(content.difference(&printed.stdout), None);

    proxy.set_rules(vec![Rule::new(Fault::Corrupt { at: 7 }).method("GET")]);
    let wrong = run(&["cp", "s3://commands/k", "g"]);
    assert!(wrong.status == Some(1) && wrong.stderr.contains("CRC64NVME"), "{}", wrong.stderr);
    assert!(!host.path("g").exists(), "wrong bytes have no name");
    proxy.set_rules(vec![on(Fault::Status { status: 500, code: "InternalError".to_owned() }, "PUT", "part")]);
    let failed = run(&["cp", "f", "s3://commands/failed"]);
    assert!(failed.status == Some(1) && failed.stderr.contains("InternalError"), "{}", failed.stderr);
    assert_eq!(host.uploads(), [""; 0], "the upload is aborted");
    let left = fs::read_dir(host.dir.path()).expect("a directory").count();
    assert_eq!(left, 2, "the data directory and f, no temporary file");
    host.server.stop();
}
