//! `zfs send`: streams of one snapshot, and packages of several.
//!
//! Invariant: what is sent is not destroyed meanwhile; no other order waits for it. A stream that cannot be sent
//! to its end has no end.

mod head;
mod plan;
mod resume;
mod saved;
mod sink;
mod words;

use std::io::Write;

use cenote_control::changes::SendRequest;
use cenote_control::peer::Peer;
use cenote_control::protocol::{Failure, FailureKind, Part};
use cenote_engine::dataset::{Catalog, Dataset, DatasetName};
use cenote_engine::send::{self, Before, Options, Redaction, Sending};
use cenote_engine::stream::StreamWriter;
use cenote_engine::{Error, ErrorKind};

use super::{Doing, Order, Warnings};
use crate::service::datasets::{Datasets, Shown};
use crate::service::delegation::Need;
use head::Head;
use plan::{Plan, Refusal, Stream};
use sink::Sink;

/// Block size that is supposed where a dataset does not say one, in bytes.
const BLOCK_SIZE: u64 = 128 << 10;

pub(super) struct Send<'a>(pub(super) &'a SendRequest);

impl Order for Send<'_> {
    fn cannot(&self, _: &str) -> String {
        match self.0.token {
            Some(_) => "cannot resume send".to_owned(),
            None => format!("warning: cannot send '{}'", self.0.snapshot),
        }
    }

    /// What is sent besides, or by a token, is checked when it is known. How much it would be may be known.
    fn needs(&self, all: &Shown, _: &Peer) -> Option<Vec<Need>> {
        Some(match self.0.dry_run || self.0.token.is_some() {
            true => Vec::new(),
            false => vec![need_to_send(all, &self.0.snapshot, self.0.raw)],
        })
    }

    fn words(&self, error: &Error) -> Option<String> {
        Some(words::words(error))
    }

    /// It changes nothing, and waits for nobody.
    fn is_urgent(&self) -> bool {
        true
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let to = doing.descriptors.take().pop();
        let to = to.ok_or_else(|| doing.refuse(FailureKind::Other, "nowhere to write to"))?;
        let sink = Sink::new(to, doing.replies, &doing.service.leaving)
            .map_err(|error| doing.refuse(FailureKind::Other, &error.to_string()))?;
        let head = self.head(doing)?;
        let catalog = doing.pool.catalog();
        let (plan, options) = match &self.0.token {
            Some(token) => {
                let resumed = resume::plan(doing, &catalog, token, head.as_ref(), self.0.verbose)?;
                (resumed.plan, resumed.options)
            }
            None if self.0.saved => {
                let saved = saved::plan(doing, &catalog, &self.0.snapshot, self.0.verbose)?;
                (saved.plan, saved.options)
            }
            None => {
                let snapshot = head.as_ref().map_or(&*self.0.snapshot, Head::name);
                let request = SendRequest { snapshot: snapshot.to_owned(), ..self.0.clone() };
                let plan = plan::plan(&catalog, &request).map_err(|refusal| match refusal {
                    Refusal::Error(error) => doing.refused(&error),
                    Refusal::Line(line) => Failure::new(FailureKind::NotFound, line),
                })?;
                let redaction = match &self.0.redaction {
                    Some(name) => redaction(doing, &catalog, &plan, name)?,
                    None => None,
                };
                (Plan { redaction, ..plan }, options(self.0))
            }
        };
        let plan = match &head {
            Some(head) => head.stands_in(plan),
            None => plan,
        };
        if !self.0.dry_run {
            let all = doing.shown()?;
            let names = plan.streams.iter().map(|stream| stream.to.name.to_string());
            let needs: Vec<Need> =
                names.map(|name| need_to_send(&all, &name, options.raw)).collect();
            doing.check(&needs)?;
        }
        // What is sent stays until this ends; who only wants to know how much it is holds up nobody. What went while
        // it was looked up is not there any more.
        let sent = plan.streams.iter().filter(|_| !self.0.dry_run);
        let kept = sent.map(|stream| doing.pool.kept().keep(stream.to.id));
        let _kept: Vec<_> = kept.collect();
        let _claimed = match plan.streams.first().filter(|_| self.0.saved && !self.0.dry_run) {
            Some(stream) => saved::Claim::of(doing, &stream.to)?,
            None => None,
        };
        for stream in &plan.streams {
            doing
                .pool
                .catalog()
                .dataset_by_id(stream.to.id)
                .map_err(|error| doing.refused(&error))?;
        }
        let sizes = match self.0.verbose || self.0.parsable {
            true => self.tell_sizes(doing, &catalog, &plan, &options)?,
            false => Vec::new(),
        };
        if !self.0.dry_run {
            self.send(doing, &catalog, &plan, &options, sink, &sizes)?;
        }
        Ok(plan.warnings)
    }
}

/// What sending a snapshot needs.
fn need_to_send(all: &Shown, snapshot: &str, raw: bool) -> Need {
    let need = Need::new("send", snapshot);
    match raw {
        true if all.is_encrypted(snapshot) => need.or("send:raw").or("send:encrypted"),
        true => need.or("send:raw"),
        false => need,
    }
}

/// The forms of blocks that are asked for.
fn options(request: &SendRequest) -> Options {
    Options {
        large_blocks: request.large_blocks,
        embedded: request.embedded,
        compressed: request.compressed,
        raw: request.raw,
        resume: None,
        saved: None,
    }
}

impl Send<'_> {
    /// The dataset, if one is sent itself.
    fn head<'a>(&self, doing: &'a Doing<'a>) -> Result<Option<Head<'a>>, Failure> {
        match &self.0.token {
            Some(token) => Head::of_token(doing, token),
            None if self.0.saved || self.0.snapshot.contains('@') => Ok(None),
            None => Head::of(doing, &self.0.snapshot).map(Some),
        }
    }

    /// Says how large each stream will be; those sizes.
    fn tell_sizes(
        &self,
        doing: &Doing<'_>,
        catalog: &Catalog,
        plan: &Plan,
        options: &Options,
    ) -> Result<Vec<Option<u64>>, Failure> {
        let shown = doing.shown()?;
        let parsable = self.0.parsable;
        let (mut sizes, mut lines) = (Vec::new(), Vec::new());
        for stream in &plan.streams {
            let name = stream.to.name.to_string();
            let of = shown.find(stream.to.name.path());
            let block_size = of.and_then(|of| {
                let number = |name: &str| of.properties.number(name);
                number("recordsize").or_else(|| number("volblocksize"))
            });
            let before = stream.before.as_ref().map_or(Before::Nothing, Before::Name);
            let block_size = block_size.unwrap_or(BLOCK_SIZE);
            let lacks = stream.since.as_ref().is_some_and(|since| since.lacking.is_some());
            let redaction = plan.redaction.as_ref();
            let size = match self.0.dry_run && (lacks || redaction.is_some()) {
                // No figure says what lists leave out, as in OpenZFS.
                true => Some(measured(doing, (stream, plan), options)?),
                false => {
                    let (to, size) = (&stream.to, block_size);
                    send::estimate(catalog, to, &before, size, options, redaction).ok()
                }
            };
            lines.push(words::estimate(parsable, stream.shown.as_deref(), &name, size));
            sizes.push(size);
        }
        let total = sizes.iter().flatten().fold(0_u64, |sum, size| sum.saturating_add(*size));
        lines.push(words::total(parsable, total));
        doing.replies.part(Part::Said(lines))?;
        Ok(sizes)
    }

    fn send(
        &self,
        doing: &Doing<'_>,
        catalog: &Catalog,
        plan: &Plan,
        options: &Options,
        sink: Sink<'_>,
        sizes: &[Option<u64>],
    ) -> Result<(), Failure> {
        let mut writer = StreamWriter::new(sink);
        let is_package = self.0.token.is_none() && plan::is_package(self.0);
        if is_package {
            let begun = plan::package(self.0).begin(catalog, &plan.members);
            begun
                .and_then(|(begin, list)| {
                    writer.begin(&begin, &list)?;
                    writer.end(cenote_format::Guid(0))
                })
                .map_err(|error| doing.refused(&error))?;
        }
        for (place, stream) in plan.streams.iter().enumerate() {
            let total = sizes.get(place).copied().flatten().unwrap_or(0);
            (writer.sink().written, writer.sink().total) = (0, total);
            doing.replies.part(Part::Sending(stream.to.name.to_string()))?;
            one(doing, (stream, plan), options, &mut writer)?;
        }
        match is_package {
            true => writer.close().map_err(|error| doing.refused(&error)),
            false => Ok(()),
        }
    }
}

/// Bytes of one stream, which is made and not sent.
fn measured(doing: &Doing<'_>, sent: (&Stream, &Plan), options: &Options) -> Result<u64, Failure> {
    let mut writer = StreamWriter::new(std::io::sink());
    one(doing, sent, options, &mut writer)?;
    Ok(writer.bytes())
}

/// Sends one stream.
fn one<W: Write>(
    doing: &Doing<'_>,
    (stream, plan): (&Stream, &Plan),
    options: &Options,
    writer: &mut StreamWriter<W>,
) -> Result<(), Failure> {
    // Blocks of a catalog of long ago may have been freed and written over since.
    let catalog = doing.pool.catalog();
    let sent = Sending::new(doing.pool, &catalog, &stream.to, stream.since.clone(), options)
        .map(|sending| match &plan.part_of {
            Some((name, guid)) => sending.standing_for(name, *guid),
            None => sending,
        })
        .and_then(|sending| match &plan.redaction {
            Some(redaction) => sending.redacted(redaction.clone()),
            None => Ok(sending),
        })
        .and_then(|sending| sending.write(writer, &mut |_| Ok(())));
    sent.map_err(|error| {
        let words = match error.kind() {
            ErrorKind::InvalidArgument if plan.redaction.is_some() => error.reason().to_owned(),
            _ => words::words(&error),
        };
        cannot(doing, &stream.to, &error, &words)
    })
}

/// What the bookmark of this name says is left out of the one stream there is.
fn redaction(
    doing: &Doing<'_>,
    catalog: &Catalog,
    plan: &Plan,
    name: &str,
) -> Result<Option<Redaction>, Failure> {
    let to = match plan.streams.as_slice() {
        [] => return Ok(None),
        [Stream { to, .. }] => to,
        _ => return Err(doing.refuse(FailureKind::Other, "a package cannot be redacted")),
    };
    let name = DatasetName::parse(name);
    let found = name.and_then(|name| Redaction::of_bookmark(catalog, to, &name));
    found.map(Some).map_err(|error| {
        let words = match error.kind() {
            ErrorKind::InvalidArgument => error.reason().to_owned(),
            ErrorKind::NotFound => "nonexistent redaction bookmark provided".to_owned(),
            _ => words::words(&error),
        };
        cannot(doing, to, &error, &words)
    })
}

/// The refusal of a stream of `to`, in these words.
fn cannot(doing: &Doing<'_>, to: &Dataset, error: &Error, words: &str) -> Failure {
    let start = match doing.start.starts_with("warning") {
        true => format!("warning: cannot send '{}'", to.name),
        false => doing.start.clone(),
    };
    Failure { message: format!("{start}: {words}"), ..crate::service::failure(error) }
}
