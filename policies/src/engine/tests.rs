use super::{Advice, Engine, Options};
use crate::access::{Access, Caller, Op};

#[test]
fn jobs() {
    for k in [8] {
        for c in [0.1, 0.2, 0.4, 0.6, 0.8] {
            let (n, epochs) = (2000_usize, 14);
            let mut rng = fastrand::Rng::with_seed(5);
            let perms: Vec<Vec<usize>> = (0..k)
                .map(|_| {
                    (0..epochs)
                        .flat_map(|_| {
                            let mut p: Vec<usize> = (0..n).collect();
                            rng.shuffle(&mut p);
                            p
                        })
                        .collect()
                })
                .collect();
            let off: Vec<usize> = (0..k).map(|_| rng.usize(..n)).collect();
            let bytes = 100_000_u64;
            let unit = bytes.div_ceil(512) * 512;
            let mut engine = Engine::new(Options {
                capacity_bytes: (n as f64 * c) as u64 * unit,
                blocks_max: 100_000,
                block_bytes: 8 << 20,
                seed: 1,
            });
            let (mut hits, mut total, mut kept, mut time) = (0, 0, 0, 0);
            let len = n * epochs;
            for t in 0..len + n {
                let mut js: Vec<usize> = (0..k).collect();
                rng.shuffle(&mut js);
                for j in js {
                    let Some(i) = t.checked_sub(off[j]) else { continue };
                    if i >= len {
                        continue;
                    }
                    time += 1000;
                    let key = format!("train/{:06}.jpg", perms[j][i]);
                    let access = Access {
                        at_us: time,
                        caller: Caller { id: j as u64 + 7, family: 1 },
                        bucket: 1,
                        key: &key,
                        op: Op::Read,
                        size: bytes,
                        range: 0..bytes,
                    };
                    let seen = engine.observe(&access);
                    let advice = engine.read(seen, &access, 0);
                    if t > len / 2 {
                        total += 1;
                        hits += usize::from(advice == Advice::Kept);
                        kept += usize::from(advice == Advice::Keep);
                    }
                }
            }
            println!(
                "k={k} c={c} hit {:.3} written {:.3}",
                hits as f64 / total as f64,
                kept as f64 / total as f64
            );
        }
    }
}
