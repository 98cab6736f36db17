//! One end of a replication: datasets here, or on another host by ssh.
//!
//! Invariant: what is run there is `zfs` with these arguments, whatever characters are in them.

use std::process::{Command, Stdio};

/// Where datasets are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// `user@host`; none: here.
    pub(super) host: Option<String>,
    /// The dataset at the top.
    pub(super) dataset: String,
}

impl Place {
    /// `tank/a`, `host:tank/a` or `user@host:tank/a`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (host, dataset) = match text.split_once(':') {
            // Of a name with a colon in it the first part is a pool's, which has no dots and no @ before it.
            Some((host, dataset)) if !host.contains('/') => (Some(host.to_owned()), dataset),
            _ => (None, text),
        };
        let is_odd =
            dataset.is_empty() || dataset.starts_with(['-', '/']) || dataset.contains(['@', '#']);
        if is_odd || host.as_ref().is_some_and(|host| host.is_empty() || host.starts_with('-')) {
            return Err(format!(
                "'{text}' is no dataset, and no host with one (host:pool/dataset)"
            ));
        }
        Ok(Self { host, dataset: dataset.to_owned() })
    }

    /// The dataset that stands here for one below `top` there.
    pub(super) fn of(&self, name: &str, top: &str) -> String {
        format!("{}{}", self.dataset, name.strip_prefix(top).unwrap_or_default())
    }

    /// `zfs` with these arguments.
    pub(super) fn zfs(&self, arguments: &[&str]) -> Command {
        let Some(host) = &self.host else {
            let program = std::env::current_exe().unwrap_or_else(|_| "cenote".into());
            let mut command = Command::new(program);
            command.arg("zfs").args(arguments);
            return command;
        };
        let quoted = arguments.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''")));
        let line = format!("zfs {}", quoted.collect::<Vec<_>>().join(" "));
        let mut command = Command::new("ssh");
        command.args(["-o", "BatchMode=yes", "--", host, &line]);
        command
    }

    /// What it prints.
    ///
    /// # Errors
    /// What it complains of.
    pub(super) fn ask(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.zfs(arguments).stdin(Stdio::null()).output();
        let output = output.map_err(|error| match &self.host {
            Some(host) => format!("cannot run ssh to {host}: {error}"),
            None => format!("cannot run zfs: {error}"),
        })?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_here_or_on_hosts() {
        let at = |host: Option<&str>, dataset: &str| {
            Ok(Place { host: host.map(str::to_owned), dataset: dataset.to_owned() })
        };
        assert_eq!(Place::parse("tank/a"), at(None, "tank/a"));
        assert_eq!(Place::parse("box:tank/a"), at(Some("box"), "tank/a"));
        assert_eq!(Place::parse("root@box.example:tank"), at(Some("root@box.example"), "tank"));
        assert_eq!(Place::parse("tank/a:b"), at(None, "tank/a:b"));
        for odd in ["", "-x", "/tank", "tank@s", "-oProxyCommand=x:tank", ":tank", "box:-x"] {
            assert!(Place::parse(odd).is_err(), "{odd}");
        }
        let back = Place::parse("back/copy").unwrap();
        assert_eq!(back.of("tank/a/b", "tank/a"), "back/copy/b");
        assert_eq!(back.of("tank/a", "tank/a"), "back/copy");
    }

    #[test]
    fn words_reach_the_other_host_as_they_are() {
        let place = Place::parse("box:tank").unwrap();
        let command = place.zfs(&["list", "a'b c;d"]);
        let last = command.get_args().last().unwrap().to_string_lossy().into_owned();
        assert_eq!(last, "zfs 'list' 'a'\\''b c;d'");
    }
}
