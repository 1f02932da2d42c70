//! Visits every state, and says what is broken first and which states can never finish.

use std::collections::HashMap;
use std::collections::hash_map;
use std::time::{Duration, Instant};

use super::Protocol;
use super::fingerprint::fingerprint;
use super::state::{Breach, State};
use super::step::Step;

/// What a check has found.
#[derive(Debug)]
pub struct Verdict {
    /// Different states that were visited.
    pub states: usize,
    /// Whether these are all that there are. Not after a breach, which ends the check.
    pub whole: bool,
    /// The first promise that is broken; none can be broken in fewer steps.
    pub breach: Option<Breach>,
    /// States from which no more faults do not lead to the end of everything.
    pub stuck: usize,
    /// The steps to the breach, else to the first state that is stuck.
    pub way: Vec<Step>,
    /// How long it took.
    pub elapsed: Duration,
}

impl Verdict {
    /// Nothing is broken, everything can finish, and nothing was left out.
    pub fn holds(&self) -> bool {
        self.whole && self.breach.is_none() && self.stuck == 0
    }
}

/// Visits every state that the protocol can reach, the nearest first, until a promise is broken or
/// there are `most` of them. A million take some 300 MB.
pub fn check(protocol: Protocol, most: usize) -> Verdict {
    let began = Instant::now();
    let mut search = Search::new(protocol);
    let mut level = vec![(0, search.first.clone())];
    let mut breach = None;
    while breach.is_none() && !level.is_empty() && search.parents.len() < most {
        let mut further = Vec::new();
        breach = search.go_on(level, &mut further);
        level = further;
    }
    let states = search.parents.len();
    let whole = breach.is_none() && level.is_empty();
    let stuck = if whole { search.stuck() } else { Vec::new() };
    let end = breach.map(|(_, state)| state).or(stuck.first().copied());
    Verdict {
        states,
        whole,
        breach: breach.map(|(breach, _)| breach),
        stuck: stuck.len(),
        way: end.map_or_else(Vec::new, |state| search.way_to(state)),
        elapsed: began.elapsed(),
    }
}

/// States in the order in which they were found.
type Id = u32;

fn id(index: usize) -> Id {
    Id::try_from(index).expect("memory ends before four thousand million states")
}

struct Search {
    protocol: Protocol,
    first: State,
    ids: HashMap<u128, Id>,
    /// From which state each was found, and by which of its steps.
    parents: Vec<(Id, u32)>,
    /// Steps that are no faults, as (to, from).
    edges: Vec<(Id, Id)>,
    done: Vec<Id>,
}

impl Search {
    fn new(protocol: Protocol) -> Self {
        let mut first = State::new(&protocol.bounds);
        protocol.reduce(&mut first);
        Self {
            protocol,
            ids: HashMap::from([(fingerprint(&first), 0)]),
            parents: vec![(0, 0)],
            edges: Vec::new(),
            done: Vec::new(),
            first,
        }
    }

    /// Looks at what is one step further than these; ends at the first that breaks a promise.
    fn go_on(
        &mut self,
        level: Vec<(Id, State)>,
        further: &mut Vec<(Id, State)>,
    ) -> Option<(Breach, Id)> {
        for (from, state) in level {
            if state.is_done() {
                self.done.push(from);
            }
            for (number, step) in (0..).zip(self.protocol.steps(&state)) {
                let Some(after) = self.protocol.after(&state, &step) else {
                    continue;
                };
                let new = id(self.parents.len());
                let to = match self.ids.entry(fingerprint(&after)) {
                    hash_map::Entry::Occupied(known) => *known.get(),
                    hash_map::Entry::Vacant(place) => {
                        self.parents.push((from, number));
                        *place.insert(new)
                    }
                };
                if step.fault().is_none() {
                    self.edges.push((to, from));
                }
                if let Some(breach) = after.breach {
                    return Some((breach, to));
                }
                if to == new {
                    further.push((to, after));
                }
            }
        }
        None
    }

    /// All from which no way without a fault leads to the end of everything.
    fn stuck(&mut self) -> Vec<Id> {
        self.edges.sort_unstable();
        let mut finishes = vec![false; self.parents.len()];
        let mut open = self.done.clone();
        for state in &open {
            finishes[*state as usize] = true;
        }
        while let Some(state) = open.pop() {
            let begin = self.edges.partition_point(|(to, _)| *to < state);
            let into = self.edges[begin..]
                .iter()
                .take_while(|(to, _)| *to == state);
            for (_, from) in into {
                if !std::mem::replace(&mut finishes[*from as usize], true) {
                    open.push(*from);
                }
            }
        }
        let states = (0..).zip(finishes);
        states
            .filter(|(_, finishes)| !finishes)
            .map(|(state, _)| state)
            .collect()
    }

    fn way_to(&self, mut state: Id) -> Vec<Step> {
        let mut numbers = Vec::new();
        while state != 0 {
            let (from, number) = self.parents[state as usize];
            numbers.push(number);
            state = from;
        }
        let mut at = self.first.clone();
        let mut way = Vec::new();
        for number in numbers.into_iter().rev() {
            let step = self.protocol.steps(&at).swap_remove(number as usize);
            if let Some(after) = self.protocol.after(&at, &step) {
                at = after;
            }
            way.push(step);
        }
        way
    }
}
