//! The file that says what is done without scripts.
//!
//! Lines of `name = value`; `#` begins a comment. Invariant: a line that is not understood is refused with
//! its number and what could stand there.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Read if no other file is named, and it is there.
pub const DEFAULT: &str = "/etc/cenote/zed.conf";
const NAMES: &str = "mail, sendmail, webhook, ntfy, verbose, scrub, scrub.POOL";

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Who gets mail.
    pub mail: Option<String>,
    /// The program that sends it.
    pub sendmail: Option<String>,
    /// Addresses that get each notice as JSON.
    pub webhooks: Vec<String>,
    /// Addresses of ntfy topics.
    pub ntfy: Vec<String>,
    /// A scrub that found nothing is told as well.
    pub verbose: bool,
    /// Time between two scrubs; `None`: none are begun.
    pub scrub: Option<Duration>,
    /// The same for single pools.
    pub scrub_of: BTreeMap<String, Option<Duration>>,
}

impl Settings {
    /// Reads the file of this name, or the default one if it is there.
    ///
    /// # Errors
    /// With file, line and reason.
    pub fn read(file: Option<&Path>) -> Result<Self, String> {
        let path = file.unwrap_or(Path::new(DEFAULT));
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).map_err(|why| format!("{}:{why}", path.display())),
            Err(error) if file.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
                Ok(Self::default())
            }
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut settings = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, value) = line
                .split_once('=')
                .map(|(name, value)| (name.trim(), value.trim()))
                .ok_or_else(|| format!("{number}: is to be 'name = value'"))?;
            settings.set(name, value).map_err(|why| format!("{number}: {name}: {why}"))?;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let is_address = || match value.starts_with("http://") || value.starts_with("https://") {
            true => Ok(value.to_owned()),
            false => Err("is to begin with http:// or https://".to_owned()),
        };
        match name {
            "mail"
                if value.contains(['\n', '\r']) || value.starts_with('-') || value.is_empty() =>
            {
                return Err("is to be an address".to_owned());
            }
            "mail" => self.mail = Some(value.to_owned()),
            "sendmail" => self.sendmail = Some(value.to_owned()),
            "webhook" => self.webhooks.push(is_address()?),
            "ntfy" => self.ntfy.push(is_address()?),
            "verbose" => self.verbose = switch(value)?,
            "scrub" => self.scrub = interval(value)?,
            name => match name.strip_prefix("scrub.") {
                Some(pool) if !pool.is_empty() => {
                    self.scrub_of.insert(pool.to_owned(), interval(value)?);
                }
                _ => return Err(format!("there is no such setting; there are {NAMES}")),
            },
        }
        Ok(())
    }

    /// How often this pool is to be scrubbed.
    pub fn scrub_every(&self, pool: &str) -> Option<Duration> {
        self.scrub_of.get(pool).copied().unwrap_or(self.scrub)
    }
}

fn switch(value: &str) -> Result<bool, String> {
    match value {
        "yes" | "on" | "1" => Ok(true),
        "no" | "off" | "0" => Ok(false),
        _ => Err("is to be yes or no".to_owned()),
    }
}

/// A time: `weekly`, `monthly`, `off`, or a number with `s`, `m`, `h`, `d` or `w`.
fn interval(value: &str) -> Result<Option<Duration>, String> {
    const DAY: u64 = 86_400;
    let odd = || "is to be weekly, monthly, off, or a number of days like 30d".to_owned();
    let seconds = match value {
        "off" | "no" | "never" => return Ok(None),
        "weekly" => 7 * DAY,
        "monthly" => 30 * DAY,
        value => {
            let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let unit = match value.strip_prefix(digits).unwrap_or_default() {
                "s" => 1,
                "m" => 60,
                "h" => 3600,
                "d" => DAY,
                "w" => 7 * DAY,
                _ => return Err(odd()),
            };
            let number: u64 = digits.parse().map_err(|_| odd())?;
            number.checked_mul(unit).filter(|seconds| *seconds > 0).ok_or_else(odd)?
        }
    };
    Ok(Some(Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_wrong_ones_refused_with_their_number() {
        let text = "# all\nmail = root\nwebhook=https://a/b=c\nscrub = monthly\nscrub.tank = off\n\n\
                    scrub.small = 2w\nverbose = yes\n";
        let settings = Settings::parse(text).unwrap();
        assert_eq!(settings.mail.as_deref(), Some("root"));
        assert_eq!(settings.webhooks, ["https://a/b=c"]);
        let days = |pool| settings.scrub_every(pool).map(|time| time.as_secs() / 86_400);
        assert_eq!((days("other"), days("tank"), days("small")), (Some(30), None, Some(14)));
        assert!(settings.verbose);
        for (text, why) in [
            ("mail = root\nnothing", "2: is to be 'name = value'"),
            ("colour = red", "1: colour: there is no such setting; there are mail, "),
            ("scrub = soon", "1: scrub: is to be weekly"),
            ("ntfy = file:///x", "1: ntfy: is to begin with http"),
            ("mail = -x", "1: mail: is to be an address"),
        ] {
            let error = Settings::parse(text).unwrap_err();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
