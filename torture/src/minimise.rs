//! The shortest plan that still fails.
//!
//! Invariant: every plan that is kept has failed; steps keep their order.

use crate::plan::Plan;

/// Takes steps out of `plan`, which fails, as long as what is left `fails` too.
pub fn minimise(plan: &Plan, fails: &mut dyn FnMut(&Plan) -> bool) -> Plan {
    let mut best = plan.clone();
    let mut part = best.steps.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut shorter = false;
        while at < best.steps.len() {
            let mut tried = best.clone();
            let end = (at + part).min(tried.steps.len());
            tried.steps.drain(at..end);
            if fails(&tried) {
                best = tried;
                shorter = true;
            } else {
                at = end;
            }
        }
        match part {
            1 if !shorter => break,
            1 => {}
            _ => part = part.div_ceil(2),
        }
    }
    simpler_setup(best, fails)
}

/// Takes properties of the pool away.
fn simpler_setup(plan: Plan, fails: &mut dyn FnMut(&Plan) -> bool) -> Plan {
    let mut best = plan;
    let mut at = 0;
    while at < best.setup.properties.len() {
        let mut tried = best.clone();
        tried.setup.properties.remove(at);
        if fails(&tried) { best = tried } else { at += 1 }
    }
    for change in [
        (|plan: &mut Plan| plan.setup.encrypted = false) as fn(&mut Plan),
        |plan| plan.setup.cloning = false,
        |plan| plan.setup.ballast_mib = 0,
        |plan| plan.setup.ashift = 12,
        |plan| plan.setup.layout = "disk".to_owned(),
    ] {
        let mut tried = best.clone();
        change(&mut tried);
        if tried != best && fails(&tried) {
            best = tried;
        }
    }
    best
}
