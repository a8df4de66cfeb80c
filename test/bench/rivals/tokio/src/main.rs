//! A checker as one writes it with tokio: a task per probe, a connection per task. `shunt bench health` measures it beside
//! Shunt's engines and drives it by lines on standard input; internal/bench/checker says what they mean.
use std::cell::Cell;
use std::io::{BufRead, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, Semaphore};
use tokio::task::LocalSet;

/// What is probed, as the flags say it.
#[derive(Clone, Copy)]
struct Job {
    http: bool,
    first: u32,
    port: u16,
    targets: u32,
    interval: Duration,
    timeout: Duration,
    in_flight: usize,
}

/// Verdicts so far.
#[derive(Default)]
struct Tally {
    good: Cell<u64>,
    bad: Cell<u64>,
}

fn main() {
    let job = flags();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    LocalSet::new().block_on(&runtime, serve(job));
}

fn flags() -> Job {
    let mut job = Job {
        http: false,
        first: 0,
        port: 0,
        targets: 0,
        interval: Duration::ZERO,
        timeout: Duration::ZERO,
        in_flight: 0,
    };
    let mut args = std::env::args().skip(1);
    while let (Some(flag), Some(value)) = (args.next(), args.next()) {
        let number = || value.parse::<u64>().unwrap_or_else(|e| fail(&format!("{flag}: {value}: {e}")));
        match flag.as_str() {
            "--engine" | "--device" | "--pins" => {}
            "--kind" => job.http = value == "http",
            "--first" => job.first = value.parse::<Ipv4Addr>().unwrap_or_else(|e| fail(&format!("{flag}: {value}: {e}"))).into(),
            "--port" => job.port = number() as u16,
            "--targets" => job.targets = number() as u32,
            "--interval-ms" => job.interval = Duration::from_millis(number()),
            "--timeout-ms" => job.timeout = Duration::from_millis(number()),
            "--in-flight" => job.in_flight = number() as usize,
            _ => fail(&format!("{flag}: unknown")),
        }
    }
    job
}

fn fail(why: &str) -> ! {
    eprintln!("shunt-rival-tokio: {why}");
    std::process::exit(2)
}

async fn serve(job: Job) {
    let (send, mut orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    let slots = Arc::new(Semaphore::new(job.in_flight));
    let steady = Rc::new(Tally::default());
    answer(&Tally::default(), Duration::ZERO);
    while let Some(order) = orders.recv().await {
        match order.as_str() {
            "once" => {
                let began = Instant::now();
                let tally = Rc::new(Tally::default());
                once(job, &slots, &tally).await;
                answer(&tally, began.elapsed());
            }
            "steady" => {
                tokio::task::spawn_local(repeat(job, slots.clone(), steady.clone()));
                answer(&steady, Duration::ZERO);
            }
            "prepare" => answer(&steady, Duration::ZERO),
            "report" => answer(&steady, Duration::ZERO),
            other => fail(&format!("{other}: unknown order")),
        }
    }
}

fn answer(t: &Tally, took: Duration) {
    println!("{{\"good\":{},\"bad\":{},\"wall_ns\":{}}}", t.good.get(), t.bad.get(), took.as_nanos());
    let _ = std::io::stdout().flush();
}

/// once probes all targets, as many at a time as there are slots.
async fn once(job: Job, slots: &Arc<Semaphore>, tally: &Rc<Tally>) {
    for i in 0..job.targets {
        start(job, i, slots, tally).await;
    }
    let _ = slots.acquire_many(job.in_flight as u32).await;
}

/// repeat begins a probe whenever one is due: targets are spread evenly over the interval.
async fn repeat(job: Job, slots: Arc<Semaphore>, tally: Rc<Tally>) {
    let began = Instant::now();
    for n in 0u64.. {
        let due = Duration::from_nanos((job.interval.as_nanos() * n as u128 / job.targets as u128) as u64);
        if due > began.elapsed() {
            tokio::time::sleep_until((began + due).into()).await;
        }
        start(job, (n % job.targets as u64) as u32, &slots, &tally).await;
    }
}

/// start waits for a slot and begins a probe.
async fn start(job: Job, target: u32, slots: &Arc<Semaphore>, tally: &Rc<Tally>) {
    let slot = slots.clone().acquire_owned().await.expect("slots are never closed");
    let tally = tally.clone();
    tokio::task::spawn_local(async move {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::from(job.first + target)), job.port);
        let good = matches!(tokio::time::timeout(job.timeout, probe(job.http, address)).await, Ok(Ok(true)));
        let count = if good { &tally.good } else { &tally.bad };
        count.set(count.get() + 1);
        drop(slot);
    });
}

/// probe connects; for HTTP it also asks, reads to the end, and looks at the status.
async fn probe(http: bool, address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    if !http {
        return Ok(true);
    }
    let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::with_capacity(512);
    stream.read_to_end(&mut answer).await?;
    Ok(answer.starts_with(b"HTTP/1.") && matches!(answer.get(9), Some(b'2' | b'3')))
}
