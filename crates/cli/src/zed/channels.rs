//! Ways to people: mail, webhooks, ntfy.
//!
//! Invariant: nobody waits for a message to be sent; each try ends in time, and what could not be sent is told
//! on standard error. Addresses are no part of a command line that others could see.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use cenote_control::terminal;
use serde_json::json;

use super::notices::Notice;
use super::settings::Settings;

/// Notices that wait; more are given up.
const MOST: usize = 64;
/// How long sending one may take.
const PATIENCE: Duration = Duration::from_secs(60);
const SENDMAIL: &str = "/usr/sbin/sendmail";

/// See the module.
pub struct Channels {
    sender: Option<SyncSender<Notice>>,
}

impl Channels {
    /// Those that are set up; sends on a thread of its own.
    pub fn start(settings: &Settings) -> Self {
        let has_any =
            settings.mail.is_some() || !settings.webhooks.is_empty() || !settings.ntfy.is_empty();
        if !has_any {
            return Self { sender: None };
        }
        let settings = settings.clone();
        let (sender, receiver) = sync_channel::<Notice>(MOST);
        let run = move || receiver.into_iter().for_each(|one| send(&settings, &one));
        if let Err(error) = std::thread::Builder::new().spawn(run) {
            terminal::complain(&format!("zed: nobody is told: cannot start a thread: {error}"));
        }
        Self { sender: Some(sender) }
    }

    /// Sends a notice by all ways there are.
    pub fn send(&self, notice: Notice) {
        if let Some(sender) = &self.sender
            && sender.try_send(notice).is_err()
        {
            terminal::complain("zed: too many notices wait to be sent; one is given up");
        }
    }
}

fn send(settings: &Settings, notice: &Notice) {
    let body = notice.body();
    if let Some(mail) = &settings.mail {
        let program = settings.sendmail.as_deref().unwrap_or(SENDMAIL);
        let text = format!("To: {mail}\nSubject: {}\n\n{body}", one_line(&notice.subject));
        told("mail", give(Command::new(program).arg("-t"), &text));
    }
    for hook in &settings.webhooks {
        let data = json!({
            "title": notice.subject,
            "text": body,
            "pool": notice.pool,
            "class": notice.class,
            "eid": notice.number,
            "time": notice.time,
            "host": notice.host,
        });
        let header = ["Content-Type: application/json".to_owned()];
        told("webhook", post(hook, &header, &data.to_string()));
    }
    for topic in &settings.ntfy {
        let header = [format!("Title: {}", one_line(&notice.subject))];
        told("ntfy", post(topic, &header, &body));
    }
}

fn told(way: &str, sent: Result<(), String>) {
    if let Err(why) = sent {
        terminal::complain(&format!("zed: {way}: {why}"));
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Posts with curl, which reads on its standard input what to do.
fn post(address: &str, headers: &[String], data: &str) -> Result<(), String> {
    let mut what = format!("url = {}\n", quoted(address));
    for header in headers {
        what.push_str(&format!("header = {}\n", quoted(header)));
    }
    what.push_str(&format!("data-raw = {}\n", quoted(data)));
    give(Command::new("curl").args(["-fsS", "-m", "30", "-o", "/dev/null", "-K", "-"]), &what)
}

fn quoted(text: &str) -> String {
    let mut out = "\"".to_owned();
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    out + "\""
}

/// Runs a program with this on its standard input.
fn give(command: &mut Command, text: &str) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("{name}: {error}"))?;
    if let Some(mut input) = child.stdin.take() {
        // One that ends without reading says why by how it ends.
        drop(input.write_all(text.as_bytes()));
    }
    wait(&mut child).map_err(|why| format!("{name}: {why}"))
}

fn wait(child: &mut Child) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(status.to_string()),
            Ok(None) if begun.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(50)),
            Ok(None) => {
                // It may have ended just now.
                drop(child.kill());
                drop(child.wait());
                return Err(format!("did not end in {} seconds", PATIENCE.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_get_the_text_and_their_failure_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        let script = format!("cat > {}", out.display());
        give(Command::new("sh").args(["-c", &script]), "a text").unwrap();
        assert_eq!(std::fs::read_to_string(out).unwrap(), "a text");
        let error = give(Command::new("sh").args(["-c", "exit 3"]), "").unwrap_err();
        assert_eq!(error, "sh: exit status: 3");
        assert!(give(&mut Command::new("/nothing/here"), "").is_err());
        assert_eq!(quoted("a\"b\\c\nd"), "\"a\\\"b\\\\c\\nd\"");
    }
}
