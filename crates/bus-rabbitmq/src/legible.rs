//! Makes what a broker delivers legible for lapin.
//!
//! A short string of AMQP (a message id, the name of a header) may hold any bytes; lapin reads UTF-8
//! and gives the whole connection up where there is none. The broker then delivers the same message
//! again, to the next connection, for ever: one message would stop everybody who receives. And it reads
//! lists with one call inside the other: a header whose lists lie thousands deep would end the process.
//! So whatever a broker sends goes through here before lapin reads it: bytes that are no UTF-8 are
//! replaced in the places where lapin looks for it, one by one, so that no length changes, and what lies
//! too deep becomes bytes. What a message carries and the texts in its headers stay as they are.
//!
//! The header of a message may also come in a frame that is longer than frames may be: the broker adds
//! to the headers of what it delivers again. lapin gives the connection up for that, too. Nobody has a
//! use for headers that come near to it, so they are left out.
//!
//! The layout of frames and of their fields is that of the AMQP 0-9-1 specification (2.3.5 and 4.2),
//! with the types of fields that RabbitMQ has.

/// The kinds of frames that have short strings: a method, the header of a message.
const METHOD: u8 = 1;
const HEADER: u8 = 2;
/// The other kinds: a part of a body, a heartbeat.
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;
/// Kind, channel and length come before what a frame carries, one byte after it.
const BEFORE: usize = 7;
const AFTER: usize = 1;
/// How long a frame may be: what a connection asks for, and what the broker then keeps to. A frame of a
/// method or a header that is longer would be passed on as it is.
pub(crate) const MAX_FRAME: u32 = 1024 * 1024;
/// `connection.tune`, `basic.deliver` and `basic.return`, by class and method.
const TUNE: [u8; 4] = [0, 10, 0, 30];
const DELIVER: [u8; 4] = [0, 60, 0, 60];
const RETURN: [u8; 4] = [0, 60, 0, 50];
/// How deep tables and lists may lie in each other: lapin reads them with one call inside the other.
const MAX_DEPTH: usize = 32;
/// In place of a byte that is no UTF-8.
const REPLACED: u8 = b'?';

/// Where in the stream it is.
#[derive(Debug)]
pub(crate) struct Legible {
    /// How long a frame may be.
    most: usize,
    /// How much of a frame without short strings is still to be passed on.
    left: usize,
    /// It is not what AMQP looks like: nothing is changed any more.
    foreign: bool,
}

/// What has become of the bytes that were to be mended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mended {
    /// How many of them can go on.
    pub(crate) ready: usize,
    /// How many there are in all: what is left out makes them fewer.
    pub(crate) end: usize,
}

impl Legible {
    /// For a connection that asks for frames of at most so many bytes.
    pub(crate) fn new(most: u32) -> Self {
        Self {
            most: most as usize,
            left: 0,
            foreign: false,
        }
    }

    fn method(&mut self, carried: &mut [u8]) -> Option<()> {
        let mut fields = Fields(carried);
        let name = fields.skip(4)?;
        match [name[0], name[1], name[2], name[3]] {
            TUNE => {
                // How many channels there may be, how long frames.
                fields.skip(2)?;
                let most = fields.long()?;
                if most > 0 {
                    self.most = self.most.min(most);
                }
                return Some(());
            }
            DELIVER => {
                // The consumer is ours; the number of the delivery, whether it comes again.
                fields.short_string()?;
                fields.skip(9)?;
            }
            RETURN => {
                // A code and its words.
                fields.skip(2)?;
                fields.short_string()?;
            }
            _ => return Some(()),
        }
        // Exchange and routing key.
        fields.short_string()?;
        fields.short_string()
    }

    /// Mends the whole frames at the beginning of `waiting`.
    pub(crate) fn mend(&mut self, waiting: &mut [u8]) -> Mended {
        let (mut ready, mut end) = (0, waiting.len());
        loop {
            let rest = &mut waiting[ready..end];
            if self.foreign {
                return Mended { ready: end, end };
            }
            let passed = self.left.min(rest.len());
            self.left -= passed;
            ready += passed;
            let rest = &mut waiting[ready..end];
            let [kind, _, _, a, b, c, d, carried @ ..] = rest else {
                return Mended { ready, end };
            };
            let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
            match *kind {
                METHOD | HEADER if length <= MAX_FRAME as usize => {
                    if carried.len() < length + AFTER {
                        return Mended { ready, end };
                    }
                    let fields = &mut carried[..length];
                    // What cannot be followed any further stays as it is from there on.
                    let _ = match *kind {
                        METHOD => self.method(fields),
                        _ => Fields(fields).header(),
                    };
                    let mut whole = BEFORE + length + AFTER;
                    if *kind == HEADER && whole > self.most / 2 {
                        let without = shorten(rest, whole);
                        end -= whole - without;
                        whole = without;
                    }
                    ready += whole;
                }
                METHOD | HEADER | BODY | HEARTBEAT => self.left = BEFORE + length + AFTER,
                _ => self.foreign = true,
            }
        }
    }
}

/// Leaves out the headers of a message, in the frame of `whole` bytes at the beginning of `frames`;
/// tells how many are left of it.
fn shorten(frames: &mut [u8], whole: usize) -> usize {
    let Some((at, length)) = Fields(&mut frames[BEFORE..whole - AFTER]).headers() else {
        return whole;
    };
    let first = BEFORE + at;
    frames[first..first + 4].fill(0);
    frames.copy_within(first + 4 + length.., first + 4);
    let carried = (whole - length - BEFORE - AFTER) as u32;
    frames[3..BEFORE].copy_from_slice(&carried.to_be_bytes());
    whole - length
}

/// The fields that are still to be read.
struct Fields<'a>(&'a mut [u8]);

impl<'a> Fields<'a> {
    fn skip(&mut self, count: usize) -> Option<&'a mut [u8]> {
        let (skipped, rest) = std::mem::take(&mut self.0).split_at_mut_checked(count)?;
        self.0 = rest;
        Some(skipped)
    }

    fn byte(&mut self) -> Option<u8> {
        self.skip(1).map(|byte| byte[0])
    }

    fn short(&mut self) -> Option<u16> {
        let bytes = self.skip(2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn long(&mut self) -> Option<usize> {
        let bytes = self.skip(4)?;
        Some(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
    }

    /// A short string, which is UTF-8 afterwards.
    fn short_string(&mut self) -> Option<()> {
        let length = self.byte()?;
        let text = self.skip(usize::from(length))?;
        if std::str::from_utf8(text).is_err() {
            for byte in text.iter_mut().filter(|byte| !byte.is_ascii()) {
                *byte = REPLACED;
            }
        }
        Some(())
    }

    /// Where the headers of a message are, and how many bytes they have after their length.
    fn headers(&mut self) -> Option<(usize, usize)> {
        let whole = self.0.len();
        self.skip(12)?;
        let flags = self.short()?;
        if flags & (1 << 13) == 0 {
            return None;
        }
        // Before them come the type of the body and its encoding.
        for _ in 0..(flags >> 14).count_ones() {
            let length = self.byte()?;
            self.skip(usize::from(length))?;
        }
        let at = whole - self.0.len();
        let length = self.long()?;
        self.skip(length)?;
        Some((at, length))
    }

    /// The header of a message: its properties, as far as its flags say that they are there.
    fn header(&mut self) -> Option<()> {
        // Class, weight, the length of the body.
        self.skip(12)?;
        let flags = self.short()?;
        for bit in (2..16).rev() {
            if flags & (1 << bit) == 0 {
                continue;
            }
            match bit {
                13 => self.table()?,
                // Delivery mode and priority; a time.
                11 | 12 => self.skip(1).map(drop)?,
                6 => self.skip(8).map(drop)?,
                _ => self.short_string()?,
            }
        }
        Some(())
    }

    fn table(&mut self) -> Option<()> {
        let length = self.long()?;
        // One after the other and not one inside the other: nobody chooses how deep this goes.
        let mut inside = vec![(Fields(self.skip(length)?), true)];
        loop {
            let depth = inside.len();
            let Some((fields, has_names)) = inside.last_mut() else {
                return Some(());
            };
            if fields.0.is_empty() {
                inside.pop();
                continue;
            }
            if *has_names {
                fields.short_string()?;
            }
            let kind = fields.skip(1)?;
            if depth == MAX_DEPTH && matches!(kind[0], b'F' | b'A') {
                // Bytes have their length in the same place, and lapin does not look into them.
                kind[0] = b'x';
            }
            let length = match kind[0] {
                b'V' => 0,
                b't' | b'b' | b'B' => 1,
                b's' | b'u' | b'U' => 2,
                b'I' | b'i' | b'f' => 4,
                b'D' => 5,
                b'l' | b'L' | b'd' | b'T' => 8,
                b'S' | b'x' => fields.long()?,
                kind @ (b'F' | b'A') => {
                    let length = fields.long()?;
                    let nested = Fields(fields.skip(length)?);
                    inside.push((nested, kind == b'F'));
                    continue;
                }
                _ => return None,
            };
            fields.skip(length)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(text: &[u8]) -> Vec<u8> {
        [&[text.len() as u8], text].concat()
    }

    fn frame(kind: u8, carried: &[u8]) -> Vec<u8> {
        let length = (carried.len() as u32).to_be_bytes();
        [&[kind, 0, 1], &length[..], carried, &[0xce]].concat()
    }

    /// The header of a message with a message id, one header (and one in a table in a table), and a
    /// text as value.
    fn header(id: &[u8], name: &[u8], value: &[u8]) -> Vec<u8> {
        let long = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat();
        let inner = [short(name), vec![b'S'], long(value)].concat();
        let array = [vec![b'F'], long(&inner), vec![b't', 1]].concat();
        let table = [
            short(name),
            vec![b'A'],
            long(&array),
            short(b"n"),
            vec![b'I', 0, 0, 0, 7],
        ]
        .concat();
        let flags = (1_u16 << 15) | (1 << 13) | (1 << 12) | (1 << 7);
        let fixed = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
        let properties = [short(b"text/\xc3\xbc"), long(&table), vec![2], short(id)].concat();
        frame(
            HEADER,
            &[&fixed[..], &flags.to_be_bytes(), &properties].concat(),
        )
    }

    fn deliver(key: &[u8]) -> Vec<u8> {
        let fields = [
            short(b"consumer"),
            vec![0; 9],
            short(b"exchange"),
            short(key),
        ]
        .concat();
        frame(METHOD, &[&DELIVER[..], &fields].concat())
    }

    fn mended(stream: &[u8]) -> Vec<u8> {
        let (mut legible, mut waiting) = (Legible::new(MAX_FRAME), stream.to_vec());
        let mended = legible.mend(&mut waiting);
        assert_eq!(mended.ready, mended.end, "{legible:?}");
        waiting.truncate(mended.end);
        waiting
    }

    /// Headers that fill a frame are left out, and what stands around them stays.
    #[test]
    fn headers_that_fill_a_frame_are_left_out() {
        let tune = |most: u32| {
            let fields = [&TUNE[..], &[7, 255], &most.to_be_bytes(), &[0, 60]].concat();
            frame(METHOD, &fields)
        };
        let before = [deliver(b"key"), header(b"id", b"x", b"y")].concat();
        let after = [frame(BODY, b"body"), header(b"id", b"x", b"y")].concat();
        for (most, kept) in [(0, 300_000), (131_072, 60_000), (4_096, 1_500)] {
            let stream = |value: usize| {
                let filling = header(b"id", b"x", &vec![b'v'; value]);
                [&tune(most)[..], &before, &filling, &after].concat()
            };
            assert_eq!(mended(&stream(kept)), stream(kept), "{most}");
            let long = mended(&stream(if most == 0 { 600_000 } else { most as usize }));
            let flags = ((1_u16 << 15) | (1 << 13) | (1 << 12) | (1 << 7)).to_be_bytes();
            let fixed = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
            let rest = [short(b"text/\xc3\xbc"), vec![0; 4], vec![2], short(b"id")].concat();
            let without = frame(HEADER, &[&fixed[..], &flags, &rest].concat());
            let expected = [&tune(most)[..], &before, &without, &after].concat();
            assert_eq!(long, expected, "{most}");
        }
    }

    #[test]
    fn what_is_no_text_is_replaced_where_text_must_be() {
        let bad = [
            deliver(b"a\xffb"),
            header(b"\xff", b"x\x80", b"\xff\xfe"),
            frame(BODY, b"\xff{"),
            header(b"\xe2\x82", b"\xed\xa0\x80", b""),
        ];
        let good = [
            deliver(b"a?b"),
            header(b"?", b"x?", b"\xff\xfe"),
            frame(BODY, b"\xff{"),
            header(b"??", b"???", b""),
        ];
        assert_eq!(mended(&bad.concat()), good.concat());
        assert_eq!(mended(&good.concat()), good.concat());
    }

    /// Lists in lists, as deep as a frame has room for, end as bytes.
    #[test]
    fn what_lies_too_deep_is_bytes() {
        let mut value = vec![b'V'];
        for _ in 0..10_000 {
            let length = (value.len() as u32).to_be_bytes();
            value = [&[b'A'][..], &length, &value].concat();
        }
        let named = [short(b"deep"), value].concat();
        let table = [&(named.len() as u32).to_be_bytes()[..], &named].concat();
        let fixed = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
        let flags = (1_u16 << 13).to_be_bytes();
        let stream = frame(HEADER, &[&fixed[..], &flags, &table].concat());
        let lists = |stream: &[u8]| {
            let first = stream.iter().position(|byte| *byte == b'A').unwrap();
            let kinds = stream[first..].chunks(5).map(|value| value[0]);
            kinds.take_while(|kind| *kind == b'A').count()
        };
        assert_eq!(lists(&stream), 10_000);
        assert_eq!(lists(&mended(&stream)), MAX_DEPTH - 1);
    }

    /// However the stream comes in parts, the same goes on.
    #[test]
    fn frames_are_mended_whole() {
        let stream = [
            deliver(b"a\xffb"),
            header(b"\xff", b"x", b"y"),
            frame(BODY, &[0xff; 40]),
            frame(HEARTBEAT, b""),
            deliver(b"\xfe"),
        ]
        .concat();
        let expected = mended(&stream);
        for part in 1..stream.len() {
            let (mut legible, mut waiting, mut passed) =
                (Legible::new(MAX_FRAME), Vec::new(), Vec::new());
            for arrived in stream.chunks(part) {
                waiting.extend_from_slice(arrived);
                let mended = legible.mend(&mut waiting);
                waiting.truncate(mended.end);
                passed.extend(waiting.drain(..mended.ready));
            }
            assert_eq!(passed, expected, "in parts of {part}");
        }
    }

    /// Nothing is so odd that it stops the stream or makes it longer.
    #[test]
    fn what_is_odd_goes_on_as_it_is() {
        let mut random = 7_u64;
        let mut next = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) as u8
        };
        for _ in 0..20_000 {
            let mut carried: Vec<u8> = (0..next() % 60).map(|_| next()).collect();
            if carried.len() > 14 {
                carried[12] = 0xff;
            }
            let stream = frame(1 + next() % 2, &carried);
            assert_eq!(mended(&stream).len(), stream.len());
        }
        let old = b"AMQP\x00\x00\x09\x01";
        assert_eq!(mended(old), old);
    }
}
