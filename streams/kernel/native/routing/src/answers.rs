//! Answers that are given again for a while, by the id of their request: those that were made here,
//! and which ones Python has.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;

/// Tenant, and the request's id there.
type Name = (Box<str>, Box<str>);

pub struct Bounds {
    pub count: usize,
    pub bytes: usize,
    /// For how long, seconds.
    pub repeat_s: f64,
}

/// One that was made here.
#[derive(Clone)]
pub struct Answer {
    /// A digest of what was asked.
    pub question: u128,
    pub text: Arc<[u8]>,
    pub held: u64,
}

struct Kept {
    at: f64,
    /// None: Python has it.
    answer: Option<Answer>,
}

pub enum Found {
    Nothing,
    Again(Answer),
    /// It asks for something else, or Python has answered it.
    Pythons,
}

pub struct Answers {
    bounds: Bounds,
    kept: HashMap<Name, Kept>,
    order: VecDeque<(f64, Name)>,
    bytes: usize,
}

impl Answers {
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, kept: HashMap::new(), order: VecDeque::new(), bytes: 0 }
    }

    pub fn find(&self, tenant_id: &str, request_id: &str, question: u128, now: f64) -> Found {
        match self.kept.get(&Borrowed(tenant_id, request_id)) {
            Some(kept) if now - kept.at <= self.bounds.repeat_s => match &kept.answer {
                Some(answer) if answer.question == question => Found::Again(answer.clone()),
                _ => Found::Pythons,
            },
            _ => Found::Nothing,
        }
    }

    /// `answer`: None where Python has it.
    pub fn keep(&mut self, tenant_id: &str, request_id: &str, now: f64, answer: Option<Answer>) {
        let name: Name = (tenant_id.into(), request_id.into());
        self.forget(tenant_id, request_id);
        self.bytes += size(&name, answer.as_ref());
        self.kept.insert(name.clone(), Kept { at: now, answer });
        self.order.push_back((now, name));
        while let Some((at, name)) = self.order.front() {
            let is_gone = self.kept.get(name).is_none_or(|kept| kept.at != *at);
            let is_old = now - at > self.bounds.repeat_s;
            let is_over = self.kept.len() > self.bounds.count || self.bytes > self.bounds.bytes;
            // Those that were forgotten take room in the order alone.
            let is_long = self.order.len() > 2 * self.bounds.count;
            if !(is_gone || is_old || is_over || is_long) {
                break;
            }
            let Some((_, (tenant_id, request_id))) = self.order.pop_front() else { break };
            if !is_gone {
                self.forget(&tenant_id, &request_id);
            }
        }
    }

    /// It is decided anew where it comes again.
    pub fn forget(&mut self, tenant_id: &str, request_id: &str) {
        if let Some((name, kept)) = self.kept.remove_entry(&Borrowed(tenant_id, request_id)) {
            self.bytes -= size(&name, kept.answer.as_ref());
        }
    }
}

fn size(name: &Name, answer: Option<&Answer>) -> usize {
    128 + 2 * (name.0.len() + name.1.len()) + answer.map_or(0, |answer| answer.text.len())
}

#[derive(PartialEq, Eq, Hash)]
struct Borrowed<'a>(&'a str, &'a str);

impl hashbrown::Equivalent<Name> for Borrowed<'_> {
    fn equivalent(&self, name: &Name) -> bool {
        self.0 == &*name.0 && self.1 == &*name.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(count: usize, bytes: usize) -> Answers {
        Answers::new(Bounds { count, bytes, repeat_s: 60.0 })
    }

    fn answer(question: u128) -> Option<Answer> {
        Some(Answer { question, text: Arc::from(&b"text"[..]), held: 3 })
    }

    fn kind(answers: &Answers, id: &str, question: u128, now: f64) -> &'static str {
        match answers.find("t", id, question, now) {
            Found::Nothing => "nothing",
            Found::Again(_) => "again",
            Found::Pythons => "python",
        }
    }

    #[test]
    fn one_is_given_again_to_the_same_question_for_a_while() {
        let mut answers = answers(10, 10_000);
        answers.keep("t", "a", 10.0, answer(1));
        answers.keep("t", "b", 10.0, None);
        let kinds = [("a", 1), ("a", 2), ("b", 1), ("c", 1)];
        let kinds = kinds.map(|(id, question)| kind(&answers, id, question, 70.0));
        assert_eq!(kinds, ["again", "python", "python", "nothing"]);
        assert_eq!(kind(&answers, "a", 1, 70.5), "nothing");
        answers.keep("t", "a", 20.0, None);
        assert_eq!(kind(&answers, "a", 1, 21.0), "python");
        answers.forget("t", "a");
        assert_eq!(kind(&answers, "a", 1, 21.0), "nothing");
        answers.keep("t", "c", 200.0, None);
        assert_eq!((answers.kept.len(), answers.order.len()), (1, 1));
    }

    #[test]
    fn the_oldest_goes_where_there_is_no_room() {
        let mut few = answers(2, 10_000);
        for id in ["a", "b", "c"] {
            few.keep("t", id, 1.0, answer(1));
        }
        assert_eq!(["a", "b", "c"].map(|id| kind(&few, id, 1, 1.0)), ["nothing", "again", "again"]);
        let mut small = answers(10, 300);
        for id in ["a", "b", "c"] {
            small.keep("t", id, 1.0, answer(1));
        }
        assert_eq!(["a", "c"].map(|id| kind(&small, id, 1, 1.0)), ["nothing", "again"]);
        for _ in 0..100 {
            small.keep("t", "c", 2.0, None);
        }
        assert!(small.order.len() <= 21);
    }
}
