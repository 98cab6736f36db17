//! Looking at a pool whose only disk does not answer, while orders wait for it.
//!
//! Invariant: who looks is answered from what was published, whoever else waits for whatever.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_control::changes::{Change, ChangeRequest, NewDataset};
use cenote_control::client::Client;
use cenote_control::protocol::{DatasetQuery, Request};

use super::suspended::{FailingDisk, bench};

/// Orders that wait.
const ORDERS: usize = 100;
/// Questions asked of each kind; `LOOKS` in the environment asks for another number in all.
const LOOKS: usize = 100;
/// How long a question may take. On a busy machine one in a hundred may wait longer to be run at all.
const SOON: Duration = Duration::from_millis(50);
const LATE: Duration = Duration::from_secs(2);

/// The disk answers again, however the test ends.
pub(super) struct Frozen(pub(super) Arc<FailingDisk>);

impl Drop for Frozen {
    fn drop(&mut self) {
        self.0.freeze(false);
    }
}

fn query(root: &str, properties: &[&str]) -> DatasetQuery {
    let properties = properties.iter().map(|&name| name.to_owned()).collect();
    DatasetQuery { root: Some(root.to_owned()), properties: Some(properties), ..Default::default() }
}

/// Asks everything once. How long each took.
fn look(client: &Client) -> Vec<(&'static str, Duration)> {
    let mut times = Vec::new();
    let mut ask = |what: &'static str, question: &dyn Fn()| {
        let begun = Instant::now();
        question();
        times.push((what, begun.elapsed()));
    };
    // `status`, `list` and `iostat` ask for the same.
    ask("report", &|| assert_eq!(client.pool_report("tank").unwrap().name, "tank"));
    ask("history", &|| {
        let mut all = Vec::new();
        client.history("tank", |some| all.extend(some)).unwrap();
        let commands: Vec<&str> = all.iter().filter_map(|one| one.command.as_deref()).collect();
        assert!(commands.first().unwrap().starts_with("zpool create"), "{commands:?}");
        assert!(commands.last().unwrap().starts_with("zfs allow"), "{commands:?}");
    });
    ask("list", &|| {
        let list = DatasetQuery { properties: None, ..query("tank", &[]) };
        let all = client.datasets("tank", &list).unwrap();
        let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["tank", "tank/a", "tank/a@s"]);
        assert_eq!(all[1].properties.value("mounted"), Some("yes"));
    });
    ask("userused@", &|| {
        let wanted = query("tank/a", &["userused@7", "userquota@7", "used"]);
        let wanted = DatasetQuery { depth: Some(0), ..wanted };
        let all = client.datasets("tank", &wanted).unwrap();
        let properties = &all[0].properties;
        assert!(properties.number("userused@7").unwrap() > 0, "{properties:?}");
        assert_eq!(properties.number("userquota@7"), Some(1 << 30));
    });
    ask("userspace", &|| {
        let all = client.usage("tank", "tank/a").unwrap();
        assert!(all.iter().any(|one| one.kind == "user" && one.id == 7), "{all:?}");
    });
    ask("holds", &|| assert_eq!(client.holds("tank", "tank/a@s").unwrap()[0].0, "kept"));
    ask("permissions", &|| assert_eq!(client.permissions("tank", "tank/a").unwrap().len(), 1));
    times
}

/// The order, and that who looks when it has answered sees what it did.
fn create(client: &Client, number: usize) {
    let name = format!("tank/new{number}");
    let new = NewDataset { name: name.clone(), ..NewDataset::default() };
    let command = Some(format!("zfs create {name}"));
    let order = ChangeRequest { command: command.clone(), change: Change::CreateDataset(new) };
    client.order("tank", &Request::Change(Box::new(order))).unwrap();
    let found = client.datasets("tank", &query(&name, &["used"])).unwrap();
    assert_eq!(found[0].name, name);
    let mut history = Vec::new();
    client.history("tank", |some| history.extend(some)).unwrap();
    assert!(history.iter().any(|one| one.command == command), "{name} is not in the history");
}

#[test]
fn who_looks_is_answered_while_orders_wait_for_a_disk() {
    let Some((bench, disk, mounted)) = bench() else { return };
    bench.cenote(&["zfs", "create", "tank/a"]);
    std::fs::write(bench.at("mnt/tank/a/file"), vec![7; 1 << 20]).unwrap();
    std::os::unix::fs::chown(bench.at("mnt/tank/a/file"), Some(7), None).unwrap();
    bench.cenote(&["zfs", "set", "userquota@7=1G", "tank/a"]);
    bench.cenote(&["zpool", "sync", "tank"]);
    bench.cenote(&["zfs", "snapshot", "tank/a@s"]);
    bench.cenote(&["zfs", "hold", "kept", "tank/a@s"]);
    bench.cenote(&["zfs", "allow", "-u", "7", "snapshot", "tank/a"]);
    let client = Client::new(bench.at("run"));
    look(&client);

    let frozen = Frozen(disk.clone());
    disk.freeze(true);
    let orders: Vec<_> = (0..ORDERS)
        .map(|number| {
            let client = client.clone();
            std::thread::spawn(move || create(&client, number))
        })
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    let wanted = std::env::var("LOOKS").ok().and_then(|looks| looks.parse().ok());
    let looks = wanted.map_or(LOOKS, |all: usize| all / 7);
    let begun = Instant::now();
    let mut times: Vec<(&str, Duration)> = (0..looks).flat_map(|_| look(&client)).collect();
    let waited = begun.elapsed();
    assert!(orders.iter().all(|order| !order.is_finished()), "an order does not wait");
    drop(frozen);
    orders.into_iter().for_each(|order| order.join().unwrap());
    times.sort_by_key(|(_, time)| *time);
    let (last, soon) = (times.last().unwrap(), times[times.len() * 99 / 100]);
    println!("{} looks in {waited:?}; 99 of 100 within {soon:?}, all within {last:?}", times.len());
    assert!(soon.1 < SOON && last.1 < LATE, "{soon:?}, {last:?}");
    let names = bench.cenote(&["zfs", "list", "-H", "-o", "name"]);
    assert_eq!(names.lines().count(), ORDERS + 2);
    bench.cenote(&["zpool", "export", "tank"]);
    mounted.unmount_forced().unwrap();
}
