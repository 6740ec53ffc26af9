//! Tests of the layers, their precedence and refused values.

use super::{ConfigSources, Durability, LoadedConfig, MachineSizes, SETTINGS, documentation, example, show};
use mlgw_common::limits::{CLUSTER_SEEDS_MAX, TRUSTED_PROXIES_MAX};
use mlgw_testing::printed::assert_file_is;
use std::io::Write as _;

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn load(text: &str, environment: &[(&str, &str)]) -> Result<LoadedConfig, String> {
    let file = file(text);
    let environment = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let sources = ConfigSources { file: Some(file.path().to_owned()), environment, flags: Vec::new() };
    LoadedConfig::load(&sources).map_err(|e| e.to_string().replace(&*file.path().to_string_lossy(), "F"))
}

#[test]
fn every_default_is_a_value_of_its_own_type() {
    for setting in SETTINGS {
        assert!((setting.check)(setting.default).is_ok(), "{}", setting.key);
    }
    assert!(LoadedConfig::load(&ConfigSources::default()).is_ok());
}

#[test]
fn stronger_layers_win_and_are_reported_as_origin() {
    let text = "durability = \"os\"\n\n[s3]\nlisten = \"0.0.0.0:1\"\nregion = \"x\"\nsigv2 = false\n";
    let file = file(text);
    let sources = ConfigSources {
        file: Some(file.path().to_owned()),
        environment: vec![
            ("MLGW_S3__LISTEN".into(), "0.0.0.0:2".into()),
            ("MLGW_S3__REGION".into(), "y".into()),
        ],
        flags: vec![("s3.listen", "--listen", "0.0.0.0:3".into())],
    };
    let loaded = LoadedConfig::load(&sources).unwrap();
    assert_eq!(loaded.config.durability, Durability::Os);
    assert_eq!(loaded.config.s3.listen.port, 3);
    assert_eq!(loaded.config.s3.region, "y");
    assert!(!loaded.config.s3.sigv2);
    let shown = show(&loaded, &MachineSizes { memory_bytes: 3 << 20, disk_bytes: None });
    for (key, origin) in [
        ("s3.listen = \"0.0.0.0:3\"", "# flag --listen"),
        ("s3.region = \"y\"", "# environment MLGW_S3__REGION"),
        ("durability = \"os\"", &*format!("# {}:1", file.path().display())),
        ("s3.sigv2 = false", &*format!("# {}:6", file.path().display())),
        ("limits.memory_bytes = \"auto\"", "# built-in (1MiB here)"),
    ] {
        let line = shown.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{key}"));
        assert!(line.ends_with(origin), "{line}");
    }
}

#[test]
fn passwords_in_urls_are_never_displayed() {
    let text = "[traces]\nendpoint = \"http://u:hunter2@c:4318/v1/traces?key=hunter3\"\n\n[upstream.lake]\n\
                bucket = \"b\"\nendpoint = \"https://u:hunter4@h\"\nproxy = \"http://u:hunter5@p:3128\"\n";
    let loaded = load(text, &[]).unwrap();
    assert_eq!(
        loaded.config.upstreams[0].proxy.as_deref(),
        Some("http://u:hunter5@p:3128"),
        "used unchanged"
    );
    let shown = show(&loaded, &MachineSizes { memory_bytes: 3 << 20, disk_bytes: None });
    for line in [
        "traces.endpoint = \"http://u:…@c:4318/v1/traces?…\"",
        "upstream.lake.endpoint = \"https://u:…@h\"",
        "upstream.lake.proxy = \"http://u:…@p:3128\"",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let refused = load("[traces]\nendpoint = \"https://u:hunter6@c\"\n", &[]).unwrap_err();
    assert!(refused.contains("u:…@c"), "{refused}");
    assert!(!format!("{shown}{refused}").contains("hunter"), "{shown}{refused}");
}

#[test]
fn an_unknown_key_is_refused_with_its_line_and_the_nearest_name() {
    for (text, expected) in [
        (
            "[s3]\nlisten = \"h:1\"\nlisen = \"h:1\"",
            "F:3: unknown setting 's3.lisen'; did you mean 's3.listen'?",
        ),
        ("\n[s4]\nregion = \"x\"", "F:3: unknown setting 's4.region'; did you mean 's3.region'?"),
        ("data-dir = \"x\"", "F:1: unknown setting 'data-dir'; did you mean 'data_dir'?"),
        ("segment_bytes = 1", "F:1: unknown setting 'segment_bytes'; did you mean 'hot.segment_bytes'?"),
        ("qqq = 1", "F:1: unknown setting 'qqq'; `mlgw config example` lists all settings"),
        ("hot = 3", "F:1: 'hot' is a section: use [hot]"),
    ] {
        assert_eq!(load(text, &[]).unwrap_err(), expected);
    }
}

#[test]
fn a_wrong_value_is_refused_with_its_line_and_reason() {
    for (text, expected) in [
        (
            "\n[hot]\nsegment_bytes = \"1 parsec\"",
            "F:3: wrong value \"1 parsec\" for 'hot.segment_bytes': unknown unit \"parsec\"; \
             expected a size such as \"64MiB\", \"10GB\" or 65536",
        ),
        (
            "drain_timeout = 1.5",
            "F:1: wrong type for 'drain_timeout': expected a duration such as \"30s\", \"500ms\" or \"5m\"",
        ),
        ("[tls]\ncert = \"c\"", "F:2: 'tls.cert' requires 'tls.key'"),
        ("[limits]\nconnections = 0", "F:2: 'limits.connections' must be at least 1"),
        ("[policy]\nlook_every = \"999ms\"", "F:2: 'policy.look_every' must be at least 1s"),
        ("[catalogue]\nobject_groups = 17", "F:2: 'catalogue.object_groups' must be 1 to 16"),
        (
            "[cluster]\nlisten = \"0.0.0.0:9002\"",
            "F:2: 'cluster.listen' is 0.0.0.0:9002, to which no other host can connect; set \
             'cluster.address' to a name or an address of this host, with its port",
        ),
        (
            "[cluster]\naddress = \"h:0\"",
            "F:2: 'cluster.address' is h:0, to which no other host can connect; use a name or an address of \
             this host, and a port",
        ),
        (
            "[cluster]\nseeds = [\"h:1\", \"[::]:2\"]",
            "F:2: 'cluster.seeds' has [::]:2, to which no host can connect; use the addresses that `mlgw \
             cluster status` prints on a member",
        ),
        (
            "[s3]\nproxy_protocol = true",
            "F:2: 's3.proxy_protocol' requires 's3.trusted_proxies', the addresses of the proxies",
        ),
        (
            "[s3]\ntrusted_proxies = [\"10.0.0.1/8\"]",
            "F:2: wrong value \"10.0.0.1/8\" for 's3.trusted_proxies': \"10.0.0.1/8\": 10.0.0.1 has bits \
             beyond the prefix of 8 bits; expected a list of IP addresses or networks such as \
             [\"10.0.0.5\", \"fd00::/8\"], or \"10.0.0.5,fd00::/8\" in the environment",
        ),
        ("[access_log]\nfiles_max = 0", "F:2: 'access_log.files_max' must be at least 1"),
        (
            "[traces]\nendpoint = \"https://c:4318\"",
            "F:2: 'traces.endpoint' is \"https://c:4318\", which does not begin with http://; send traces \
             to a local collector, without TLS",
        ),
    ] {
        assert_eq!(load(text, &[]).unwrap_err(), expected);
    }
    assert!(load("[s3\n", &[]).unwrap_err().starts_with("F:1: invalid TOML: "));
}

#[test]
fn the_addresses_of_a_cluster_are_listed_up_to_the_limit() {
    const FILE: &str = "[cluster]\nlisten = \"0.0.0.0:1\"\naddress = \"a:1\"";
    let seeds = |count: usize| {
        let seeds: Vec<String> = (0..count).map(|at| format!("h{at}:9002")).collect();
        load(FILE, &[("MLGW_CLUSTER__SEEDS", seeds.join(",").as_str())])
    };
    let loaded = seeds(CLUSTER_SEEDS_MAX).unwrap();
    assert_eq!(loaded.config.cluster.seeds.len(), CLUSTER_SEEDS_MAX);
    assert_eq!(loaded.config.cluster.address.unwrap().to_string(), "a:1");
    let refused = seeds(CLUSTER_SEEDS_MAX + 1).unwrap_err();
    let expected = "environment MLGW_CLUSTER__SEEDS: 'cluster.seeds' has 65 addresses; expected at most 64";
    assert_eq!(refused, expected);
}

#[test]
fn proxies_are_listed_up_to_the_limit() {
    let proxies = |count: usize| {
        let proxies: Vec<String> = (0..count).map(|last| format!("10.0.0.{last}")).collect();
        load("[s3]\nproxy_protocol = true", &[("MLGW_S3__TRUSTED_PROXIES", proxies.join(",").as_str())])
    };
    let loaded = proxies(TRUSTED_PROXIES_MAX).unwrap();
    assert_eq!(loaded.config.s3.trusted_proxies.len(), TRUSTED_PROXIES_MAX);
    let expected = "environment MLGW_S3__TRUSTED_PROXIES: 's3.trusted_proxies' has 65 addresses and \
                    networks; expected at most 64";
    assert_eq!(proxies(TRUSTED_PROXIES_MAX + 1).unwrap_err(), expected);
}

#[test]
fn all_findings_are_reported_together() {
    let refused = load("a = 1\nb = 2\n[s3]\nsigv2 = 7", &[("MLGW_S3__X", "")]).unwrap_err();
    assert_eq!(refused.lines().count(), 4, "{refused}");
}

#[test]
fn a_wrong_value_is_refused_even_where_a_stronger_layer_hides_it() {
    assert!(load("durability = \"maybe\"", &[("MLGW_DURABILITY", "full")]).is_err());
}

#[test]
fn unknown_variables_are_refused_but_not_those_of_others() {
    let refused = load("", &[("MLGW_S3__LISEN", "x")]).unwrap_err();
    assert_eq!(refused, "environment MLGW_S3__LISEN: no such setting; did you mean 'MLGW_S3__LISTEN'?");
    assert!(load("", &[("MLGW_DATA_DIRR", "x")]).is_err());
    let fine = [("MLGW_SERVICE_HOST", "10.0.0.1"), ("MLGW_PORT_9000_TCP", "x"), ("MLGW_ADMIN_ENDPOINT", "x")];
    assert!(load("", &fine).is_ok());
}

#[test]
fn a_missing_file_is_refused_by_name() {
    let sources = ConfigSources { file: Some("/nonexistent/mlgw.toml".into()), ..ConfigSources::default() };
    let refused = LoadedConfig::load(&sources).unwrap_err().to_string();
    assert!(refused.starts_with("/nonexistent/mlgw.toml:1: cannot be read: "), "{refused}");
}

#[test]
fn lists_are_toml_lists_or_texts_with_commas() {
    let loaded = load("[s3]\ndomains = [\"a.example\", \"b.example\"]", &[]).unwrap();
    assert_eq!(loaded.config.s3.domains, ["a.example", "b.example"]);
    let loaded = load("", &[("MLGW_S3__DOMAINS", "c, d")]).unwrap();
    assert_eq!(loaded.config.s3.domains, ["c", "d"]);
}

#[test]
fn a_reload_reports_settings_that_need_a_restart() {
    let old = load("", &[]).unwrap();
    let new = load("durability = \"os\"\n[log]\nlevel = \"debug\"", &[]).unwrap();
    assert_eq!(old.needs_restart(&new), ["durability"]);
    let adopted = old.with_live_settings_of(&new);
    assert_eq!(adopted.config.durability, Durability::Full);
    assert_eq!(adopted.config.log.level, super::LogLevel::Debug);
    assert_eq!(*adopted.origin("durability"), super::SettingOrigin::BuiltIn);
    assert!(matches!(adopted.origin("log.level"), super::SettingOrigin::File(_, 3)));
}

#[test]
fn the_example_sets_nothing_until_uncommented_and_is_then_the_defaults() {
    let defaults = LoadedConfig::load(&ConfigSources::default()).unwrap().config;
    assert_eq!(load(&example(), &[]).unwrap().config, defaults);
    let uncommented: String = example()
        .lines()
        .map(|line| line.strip_prefix("# ").filter(|l| l.contains(" = ") && !l.contains('`')).unwrap_or(line))
        .fold(String::new(), |text, line| text + line + "\n");
    assert!(uncommented.contains("\nlisten = \"127.0.0.1:9000\"\n"));
    assert_eq!(load(&uncommented, &[]).unwrap().config, defaults);
}

#[test]
fn deploy_holds_the_example_configuration() {
    assert_file_is("deploy/mlgw.toml", &example());
}

#[test]
fn docs_configuration_is_printed_from_the_table() {
    assert_file_is("docs/CONFIGURATION.md", &documentation());
}
