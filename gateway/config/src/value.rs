//! Types of settings, each with one text form.
//!
//! TOML, the environment, flags and built-in defaults are all converted to text and parsed by
//! [`SettingType::from_text`], so a value has the same meaning in every layer. Invariant: `from_text` of a
//! value's `to_text` returns the value.

use mlgw_common::bytes::number_and_unit;
use mlgw_common::{ByteSize, Secret, hide_url_secrets};
use mlgw_policies::language::Environment;
use mlgw_remote::upstream::{BucketAddressing, EtagTrust, UpstreamKind};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A type of settings.
pub trait SettingType: Sized {
    /// Description of valid values, for error messages.
    const EXPECTS: &'static str;

    /// Parses the text form.
    ///
    /// # Errors
    /// Returns the reason why the text is not a valid value.
    fn from_text(text: &str) -> Result<Self, String>;

    /// Returns the text form.
    fn to_text(&self) -> String;

    /// Returns the value as TOML for display, with secrets hidden.
    fn to_toml(&self) -> String {
        quoted(&hide_url_secrets(&self.to_text()))
    }
}

/// Returns `text` as a TOML basic string.
pub(crate) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

impl SettingType for ByteSize {
    const EXPECTS: &'static str = ByteSize::EXPECTS;

    fn from_text(text: &str) -> Result<Self, String> {
        text.parse()
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

const DURATION_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

impl SettingType for Duration {
    const EXPECTS: &'static str = "a duration such as \"30s\", \"500ms\" or \"5m\"";

    fn from_text(text: &str) -> Result<Self, String> {
        let (number, unit) = number_and_unit(text)?;
        if unit.is_empty() {
            return Err("the unit is missing".to_owned());
        }
        let scale = DURATION_UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .map(|(_, scale)| *scale)
            .ok_or_else(|| format!("unknown unit {unit:?}"))?;
        number.checked_mul(scale).map(Duration::from_millis).ok_or_else(|| "too large".to_owned())
    }

    fn to_text(&self) -> String {
        let millis = u64::try_from(self.as_millis()).unwrap_or(u64::MAX);
        let whole = DURATION_UNITS.iter().find(|(_, unit)| millis != 0 && millis.is_multiple_of(*unit));
        whole.map_or_else(|| "0s".to_owned(), |(name, unit)| format!("{}{name}", millis / unit))
    }
}

impl SettingType for u64 {
    const EXPECTS: &'static str = "a whole number";

    fn from_text(text: &str) -> Result<Self, String> {
        match number_and_unit(text)? {
            (number, "") => Ok(number),
            (_, unit) => Err(format!("unexpected {unit:?} after the number")),
        }
    }

    fn to_text(&self) -> String {
        self.to_string()
    }

    fn to_toml(&self) -> String {
        self.to_string()
    }
}

impl SettingType for bool {
    const EXPECTS: &'static str = "true or false";

    fn from_text(text: &str) -> Result<Self, String> {
        text.trim().parse().map_err(|_| "neither true nor false".to_owned())
    }

    fn to_text(&self) -> String {
        self.to_string()
    }

    fn to_toml(&self) -> String {
        self.to_string()
    }
}

impl SettingType for String {
    const EXPECTS: &'static str = "a text";

    fn from_text(text: &str) -> Result<Self, String> {
        match text.trim() {
            "" => Err("the value is empty".to_owned()),
            text => Ok(text.to_owned()),
        }
    }

    fn to_text(&self) -> String {
        self.clone()
    }
}

impl SettingType for PathBuf {
    const EXPECTS: &'static str = "a path";

    fn from_text(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("the value is empty".to_owned()) } else { Ok(Self::from(text)) }
    }

    fn to_text(&self) -> String {
        self.display().to_string()
    }
}

/// A list of texts, separated by commas outside TOML.
impl SettingType for Vec<String> {
    const EXPECTS: &'static str = "a list such as [\"a\", \"b\"], or \"a,b\" in the environment";

    fn from_text(text: &str) -> Result<Self, String> {
        Ok(text.split(',').map(str::trim).filter(|t| !t.is_empty()).map(str::to_owned).collect())
    }

    fn to_text(&self) -> String {
        self.join(",")
    }

    fn to_toml(&self) -> String {
        let items: Vec<String> = self.iter().map(|item| quoted(item)).collect();
        format!("[{}]", items.join(", "))
    }
}

/// A list of paths, in the same form as a list of texts.
impl SettingType for Vec<PathBuf> {
    const EXPECTS: &'static str = Vec::<String>::EXPECTS;

    fn from_text(text: &str) -> Result<Self, String> {
        Ok(Vec::<String>::from_text(text)?.into_iter().map(PathBuf::from).collect())
    }

    fn to_text(&self) -> String {
        texts(self).to_text()
    }

    fn to_toml(&self) -> String {
        texts(self).to_toml()
    }
}

fn texts<T: SettingType>(items: &[T]) -> Vec<String> {
    items.iter().map(SettingType::to_text).collect()
}

/// Address of a listener: `HOST:PORT`; the host is a name or an IP address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Name or IP address without brackets.
    pub host: String,
    /// Port; 0 lets the system choose.
    pub port: u16,
}

impl Address {
    /// Returns true if a listener at this address accepts connections to all addresses of its host. No other
    /// host can connect to it by this text.
    #[must_use]
    pub fn is_unspecified(&self) -> bool {
        self.host.parse::<IpAddr>().is_ok_and(|host| host.is_unspecified())
    }

    /// Returns the URL under which a listener without TLS is reached from this host at `port`.
    #[must_use]
    pub fn local_http_url(&self, port: u16) -> String {
        let host = match self.host.as_str() {
            "0.0.0.0" => "127.0.0.1",
            "::" => "::1",
            host => host,
        };
        format!("http://{}", Self { host: host.to_owned(), port })
    }

    /// Returns the URL under which a listener with TLS is reached from this host at `port`.
    #[must_use]
    pub fn local_https_url(&self, port: u16) -> String {
        let host = match self.host.as_str() {
            // A certificate names hosts, hardly ever this address.
            "0.0.0.0" | "::" => "localhost",
            host => host,
        };
        format!("https://{}", Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl SettingType for Address {
    const EXPECTS: &'static str = "HOST:PORT such as \"127.0.0.1:9000\" or \"[::]:9000\"";

    fn from_text(text: &str) -> Result<Self, String> {
        let (host, port) = text.trim().rsplit_once(':').ok_or("the port is missing")?;
        let port = port.parse().map_err(|_| format!("invalid port {port:?}"))?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        if host.is_empty() {
            return Err("the host is missing; use 0.0.0.0 for all IPv4 addresses of this machine".to_owned());
        }
        if bare.is_none() && host.contains(':') {
            return Err("an IPv6 address requires brackets".to_owned());
        }
        Ok(Self { host: bare.unwrap_or(host).to_owned(), port })
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

/// A list of addresses, in the same form as a list of texts.
impl SettingType for Vec<Address> {
    const EXPECTS: &'static str = "a list of HOST:PORT such as [\"10.0.0.1:9002\", \"10.0.0.2:9002\"], or \
                                   \"10.0.0.1:9002,10.0.0.2:9002\" in the environment";

    fn from_text(text: &str) -> Result<Self, String> {
        let address = |item: &String| Address::from_text(item).map_err(|why| format!("{item:?}: {why}"));
        Vec::<String>::from_text(text)?.iter().map(address).collect()
    }

    fn to_text(&self) -> String {
        texts(self).to_text()
    }

    fn to_toml(&self) -> String {
        texts(self).to_toml()
    }
}

/// The empty text is an unset value.
impl<T: SettingType> SettingType for Option<T> {
    const EXPECTS: &'static str = T::EXPECTS;

    fn from_text(text: &str) -> Result<Self, String> {
        if text.is_empty() { Ok(None) } else { T::from_text(text).map(Some) }
    }

    fn to_text(&self) -> String {
        self.as_ref().map(SettingType::to_text).unwrap_or_default()
    }

    fn to_toml(&self) -> String {
        self.as_ref().map_or_else(|| quoted(""), SettingType::to_toml)
    }
}

/// A value, or `auto` for one that is derived from the machine at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auto<T> {
    /// Derived at start, as the setting's documentation describes.
    Auto,
    /// Explicit value.
    Is(T),
}

impl<T: Copy> Auto<T> {
    /// Returns the explicit value, or the result of `derive`.
    pub fn or_else(self, derive: impl FnOnce() -> T) -> T {
        match self {
            Self::Auto => derive(),
            Self::Is(value) => value,
        }
    }
}

impl<T: SettingType> SettingType for Auto<T> {
    const EXPECTS: &'static str = T::EXPECTS;

    fn from_text(text: &str) -> Result<Self, String> {
        if text.trim() == "auto" { Ok(Self::Auto) } else { T::from_text(text).map(Self::Is) }
    }

    fn to_text(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Is(value) => value.to_text(),
        }
    }

    fn to_toml(&self) -> String {
        match self {
            Self::Auto => quoted("auto"),
            Self::Is(value) => value.to_toml(),
        }
    }
}

/// Never displayed.
impl SettingType for Secret {
    const EXPECTS: &'static str = "a secret";

    fn from_text(text: &str) -> Result<Self, String> {
        Ok(Self::new(text))
    }

    fn to_text(&self) -> String {
        self.expose().to_owned()
    }

    fn to_toml(&self) -> String {
        quoted("…")
    }
}

/// Implements [`SettingType`] for an enumeration of another crate.
macro_rules! choices_of {
    ($name:ident { $($item:ident = $text:literal,)* } $expects:literal) => {
        impl SettingType for $name {
            const EXPECTS: &'static str = $expects;

            fn from_text(text: &str) -> Result<Self, String> {
                match text.trim() {
                    $($text => Ok(Self::$item),)*
                    _ => Err("unknown word".to_owned()),
                }
            }

            fn to_text(&self) -> String {
                match self { $(Self::$item => $text.to_owned(),)* }
            }
        }
    };
}

choices_of! {
    UpstreamKind {
        S3 = "s3",
        Gcs = "gcs",
        Azure = "azure",
        Oss = "oss",
        Cos = "cos",
        Obs = "obs",
        WebHdfs = "webhdfs",
        Fs = "fs",
    }
    "\"s3\", \"gcs\", \"azure\", \"oss\", \"cos\", \"obs\", \"webhdfs\" or \"fs\""
}

choices_of! {
    BucketAddressing { Auto = "auto", Path = "path", Virtual = "virtual", }
    "\"auto\", \"path\" or \"virtual\""
}

choices_of! {
    EtagTrust { Auto = "auto", Opaque = "opaque", }
    "\"auto\" or \"opaque\""
}

choices_of! {
    Environment { Development = "development", Staging = "staging", Production = "production", }
    "\"development\", \"staging\" or \"production\""
}

macro_rules! choices {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$item_doc:meta])* $item:ident = $text:literal,)* } $expects:literal
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$item_doc])* $item,)*
        }

        choices_of! { $name { $($item = $text,)* } $expects }
    };
}

choices! {
    /// Source of the credentials of an upstream.
    CredentialKind {
        /// The configuration.
        Static = "static",
        /// The environment variables of the vendor's own tools.
        Env = "env",
        /// A file in the vendor's format.
        File = "file",
        /// The same chain of sources as AWS' tools.
        Chain = "chain",
        /// None: requests are not signed.
        None = "none",
    }
    "\"static\", \"env\", \"file\", \"chain\" or \"none\""
}

choices! {
    /// Guarantee of a success response.
    Durability {
        /// Bytes and metadata survive power loss.
        Full = "full",
        /// Bytes and metadata survive the end of the process, but not a crash of the machine.
        Os = "os",
    }
    "\"full\" or \"os\""
}

choices! {
    /// Replicas that have synced a write before it is acknowledged.
    ReplicaQuorum {
        /// Two, the node of the client included.
        Two = "two",
        /// All replicas of the segment.
        All = "all",
    }
    "\"two\" or \"all\""
}

choices! {
    /// ETag of a new body.
    EtagKind {
        /// MD5 of the body, as clients expect.
        Md5 = "md5",
        /// A random value, without the cost of a hash.
        Fast = "fast",
    }
    "\"md5\" or \"fast\""
}

choices! {
    /// Format of log lines.
    LogFormat {
        /// Text for operators.
        Text = "text",
        /// JSON: an object per line.
        Json = "json",
    }
    "\"text\" or \"json\""
}

choices! {
    /// Minimum level of log lines.
    LogLevel {
        /// Failures.
        Error = "error",
        /// Also conditions that need attention soon.
        Warn = "warn",
        /// Also starts, stops and changes.
        Info = "info",
        /// Also details for developers.
        Debug = "debug",
        /// All lines.
        Trace = "trace",
    }
    "\"error\", \"warn\", \"info\", \"debug\" or \"trace\""
}

choices! {
    /// Condition under which `mlgw serve` prints the root credentials.
    PrintCredentials {
        /// Only if standard output is a terminal.
        Terminal = "terminal",
        /// At every start.
        Always = "always",
        /// At no start.
        Never = "never",
    }
    "\"terminal\", \"always\" or \"never\""
}

#[cfg(test)]
mod tests {
    use super::{Address, Auto, ByteSize, SettingType};
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn sizes_are_read_in_binary_and_decimal_units() {
        for (text, bytes) in
            [("64MiB", 64 << 20), ("10 GB", 10_000_000_000), ("65_536", 65536), ("1kb", 1000), ("0", 0)]
        {
            assert_eq!(ByteSize::from_text(text), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "MiB", "1.5GiB", "1 parsec", "99999999TiB", "-1"] {
            assert!(ByteSize::from_text(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_displayed_with_three_digits() {
        for (bytes, shown) in [(0, "0 B"), (999, "999 B"), (1 << 20, "1.0 MiB"), (5 << 30, "5.0 GiB")] {
            assert_eq!(ByteSize(bytes).human(), shown);
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(Duration::from_text("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(Duration::from_text("250ms"), Ok(Duration::from_millis(250)));
        assert!(Duration::from_text("30").is_err());
        assert!(Duration::from_text("30sec").is_err());
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        assert_eq!(Address::from_text("[::1]:80").map(|a| a.host), Ok("::1".to_owned()));
        assert_eq!(Address::from_text("localhost:9000").map(|a| a.port), Ok(9000));
        for text in ["localhost", ":9000", "::1:9000", "localhost:s3", "h:65536"] {
            assert!(Address::from_text(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_list_of_addresses_is_read_item_by_item() {
        let read = Vec::<Address>::from_text("a:1, [::1]:2").unwrap();
        assert_eq!(
            (read.to_text().as_str(), read.to_toml().as_str()),
            ("a:1,[::1]:2", "[\"a:1\", \"[::1]:2\"]")
        );
        assert_eq!(Vec::<Address>::from_text(""), Ok(Vec::new()));
        assert_eq!(Vec::<Address>::from_text("a:1,b"), Err("\"b\": the port is missing".to_owned()));
    }

    #[test]
    fn an_address_of_all_interfaces_is_recognized() {
        for (text, is_unspecified) in
            [("0.0.0.0:1", true), ("[::]:1", true), ("[::1]:1", false), ("10.0.0.0:1", false), ("h:1", false)]
        {
            assert_eq!(Address::from_text(text).unwrap().is_unspecified(), is_unspecified, "{text}");
        }
    }

    #[test]
    fn an_address_of_all_interfaces_has_the_url_of_one_that_can_be_used() {
        type UrlOf = fn(&Address, u16) -> String;
        let cases: [(_, UrlOf, _); 7] = [
            ("127.0.0.1:0", Address::local_http_url, "http://127.0.0.1:7"),
            ("0.0.0.0:0", Address::local_http_url, "http://127.0.0.1:7"),
            ("10.0.0.0:0", Address::local_http_url, "http://10.0.0.0:7"),
            ("[::]:0", Address::local_http_url, "http://[::1]:7"),
            ("[fd00::]:0", Address::local_http_url, "http://[fd00::]:7"),
            ("[::]:0", Address::local_https_url, "https://localhost:7"),
            ("s3.example.com:0", Address::local_https_url, "https://s3.example.com:7"),
        ];
        for (configured, url, expected) in cases {
            assert_eq!(url(&Address::from_text(configured).unwrap(), 7), expected);
        }
    }

    #[test]
    fn auto_and_unset_have_a_text_of_their_own() {
        assert_eq!(Auto::<ByteSize>::from_text("auto"), Ok(Auto::Auto));
        assert_eq!(Option::<ByteSize>::from_text(""), Ok(None));
        assert_eq!(Auto::Is(ByteSize(1 << 20)).to_text(), "1MiB");
    }

    proptest! {
        #[test]
        fn sizes_and_durations_read_back_as_written(
            number in any::<u64>(), millis in 0..u64::from(u32::MAX)
        ) {
            prop_assert_eq!(ByteSize::from_text(&ByteSize(number).to_text()), Ok(ByteSize(number)));
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(Duration::from_text(&duration.to_text()), Ok(duration));
        }
    }
}
