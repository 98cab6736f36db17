//! Tests of the tree on simulated devices.

mod damage;
mod exchanged;
mod health;
mod hostile;
mod nested;
mod reflow;
mod removed;
mod rig;
mod slow;
mod together;
mod write;
