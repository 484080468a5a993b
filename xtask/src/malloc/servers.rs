//! Servers, which run under an allocator while their clients do not. They listen on Unix sockets in the temporary folder.

use super::measure::{self, Sample, Server};
use super::{Allocator, Program, Run, Setup, find};
use crate::shell::{Result, works};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use wait4::ResourceUsage;
use xshell::{Shell, cmd};

pub(super) const SERVERS: [Program; 2] = [
    Program {
        name: "redis",
        about: "Redis loads 200,000 commands, serves `redis-benchmark`, saves in a forked process, and reloads",
        prepare: redis,
    },
    Program {
        name: "postgres",
        about: "PostgreSQL serves `pgbench` with four clients, and sorts, groups and serialises rows",
        prepare: postgres,
    },
];

fn redis(setup: &Setup<'_>) -> Result<Run> {
    let place = |name: &str| match &setup.wanted.redis {
        Some(folder) => Ok(folder.join(name)),
        None => find(name),
    };
    let tools = ["redis-server", "redis-cli", "redis-benchmark"].map(place);
    let [server, cli, bench] = tools;
    let redis = Redis {
        server: server?,
        cli: cli?,
        bench: bench?,
        folder: setup.temporary.join("redis"),
        sh: setup.sh.clone(),
    };
    let (sh, program) = (&redis.sh, &redis.server);
    let version = cmd!(sh, "{program} --version").quiet().read()?;
    if !version.contains("malloc=libc") {
        let built = version
            .split(' ')
            .find(|word| word.starts_with("malloc="))
            .unwrap_or("another allocator");
        return Err(format!(
            "it is built with {built}, so it has no run under glibc. Build Redis with MALLOC=libc and name the folder of its programs \
             with --redis"
        )
        .into());
    }
    sh.create_dir(&redis.folder)?;
    write_commands(&redis.folder.join("commands"))?;
    Ok(Run::alone(move |allocator| redis.run(allocator)))
}

/// Writes commands that fill every kind of value, in many sizes.
fn write_commands(file: &Path) -> Result {
    let mut file = BufWriter::new(File::create(file)?);
    for n in 0..50_000_u32 {
        let (few, size) = (n % 500, n.wrapping_mul(7919) as usize % 700 + 1);
        let value = "x".repeat(size);
        write!(file, "SET key:{n} {value}\r\nRPUSH list:{few} {n}\r\n")?;
        write!(
            file,
            "HSET hash:{few} field:{n} {value}\r\nZADD set:{few} {size} {n}\r\n"
        )?;
    }
    Ok(file.flush()?)
}

struct Redis {
    server: PathBuf,
    cli: PathBuf,
    bench: PathBuf,
    folder: PathBuf,
    sh: Shell,
}

impl Redis {
    fn run(&self, allocator: &Allocator) -> Result<Sample> {
        let socket = self.folder.join("socket");
        // A server would load the file that an earlier one saved, so the file is removed.
        self.sh.remove_path(self.folder.join("dump.rdb"))?;
        let mut command = Command::new(&self.server);
        command
            .arg("--unixsocket")
            .arg(&socket)
            .arg("--dir")
            .arg(&self.folder);
        command.args([
            "--port",
            "0",
            "--save",
            "",
            "--appendonly",
            "no",
            "--enable-debug-command",
            "yes",
        ]);
        let mut server = Server::start(allocator, command, self.folder.join("log"))?;
        server.wait_until(|| self.ask(&["ping"]).is_ok_and(|answer| answer == "PONG"))?;

        let begin = Instant::now();
        let (sh, cli, bench) = (&self.sh, &self.cli, &self.bench);
        let mut load = Command::new(cli);
        load.arg("-s")
            .arg(&socket)
            .arg("--pipe")
            .stdin(File::open(self.folder.join("commands"))?);
        succeed(load)?;
        let loaded = self.ask(&["debug", "digest"])?;
        let tests = "set,get,lpush,lpop,hset,sadd,zadd";
        cmd!(
            sh,
            "{bench} -s {socket} -n 60000 -r 60000 -d 120 -P 16 -t {tests} -q"
        )
        .quiet()
        .read()?;
        self.ask(&["bgsave"])?;
        server.wait_until(|| {
            self.ask(&["info", "persistence"])
                .is_ok_and(|info| info.contains("rdb_bgsave_in_progress:0"))
        })?;
        if !self
            .ask(&["info", "persistence"])?
            .contains("rdb_last_bgsave_status:ok")
        {
            return Err("BGSAVE failed".into());
        }
        let worked = self.ask(&["debug", "digest"])?;
        self.ask(&["debug", "reload"])?;
        if self.ask(&["debug", "digest"])? != worked {
            return Err("the contents differ after DEBUG RELOAD".into());
        }
        let time = begin.elapsed().as_secs_f64();
        self.ask(&["shutdown", "nosave"])?;
        let used = server.end()?;
        Ok(Sample {
            time,
            cpu: measure::seconds(&used),
            peak: used.maxrss,
            output: measure::hash(&loaded),
        })
    }

    fn ask(&self, command: &[&str]) -> Result<String> {
        let (sh, cli, socket) = (&self.sh, &self.cli, self.folder.join("socket"));
        Ok(cmd!(sh, "{cli} -s {socket} {command...}")
            .quiet()
            .ignore_stderr()
            .read()?)
    }
}

fn postgres(setup: &Setup<'_>) -> Result<Run> {
    let sh = setup.sh;
    // Debian's programs in PATH are scripts that choose a version.
    let found = cmd!(sh, "pg_config --bindir")
        .quiet()
        .ignore_stderr()
        .read()
        .map(PathBuf::from);
    let bin = match found {
        Ok(folder) if folder.join("postgres").is_file() => folder,
        _ => find("postgres")?
            .canonicalize()?
            .parent()
            .map(Path::to_path_buf)
            .unwrap_or_default(),
    };
    let (user, folder) = (user(sh)?, setup.temporary.join("postgres"));
    let postgres = Postgres {
        bin,
        folder,
        user,
        queries: setup.sources.join("queries.sql"),
    };
    postgres.prepare()?;
    Ok(Run::alone(move |allocator| postgres.run(allocator)))
}

/// Returns the user that runs the server if the current user is root. PostgreSQL refuses to run as root.
fn user(sh: &Shell) -> Result<Option<&'static str>> {
    if cmd!(sh, "id -u").quiet().read()? != "0" {
        return Ok(None);
    }
    Ok(Some(if works("id", &["postgres"]) {
        "postgres"
    } else {
        "nobody"
    }))
}

struct Postgres {
    bin: PathBuf,
    folder: PathBuf,
    user: Option<&'static str>,
    queries: PathBuf,
}

impl Postgres {
    /// Makes a cluster with the tables of pgbench. Each run works on a copy of it.
    fn prepare(&self) -> Result {
        std::fs::create_dir(&self.folder)?;
        if let Some(user) = self.user {
            let mut command = Command::new("chown");
            command.arg(user).arg(&self.folder);
            succeed(command)?;
        }
        let mut command = self.as_user("initdb");
        command.args([
            "--no-sync",
            "--auth=trust",
            "--username=postgres",
            "--encoding=UTF8",
            "--locale=C",
            "base",
        ]);
        succeed(command)?;
        let glibc = Allocator {
            name: "glibc",
            library: None,
        };
        let server = self.start(&glibc, "base")?;
        self.client("pgbench", &["--initialize", "--quiet", "--scale=5"])?;
        self.stop(server)?;
        Ok(())
    }

    fn run(&self, allocator: &Allocator) -> Result<Sample> {
        let _ = std::fs::remove_dir_all(self.folder.join("data"));
        let mut command = Command::new("cp");
        command.args(["-a", "base", "data"]).current_dir(&self.folder);
        succeed(command)?;
        let server = self.start(allocator, "data")?;
        let (id, stop) = (server.id(), AtomicBool::new(false));
        let (worked, peak) = std::thread::scope(|scope| {
            let peak = scope.spawn(|| peak_of_processes(id, &stop));
            let worked = self.work();
            stop.store(true, Relaxed);
            (worked, peak.join().unwrap_or(0))
        });
        let (time, output) = worked?;
        let used = self.stop(server)?;
        Ok(Sample {
            time,
            cpu: measure::seconds(&used),
            peak,
            output: measure::hash(&output),
        })
    }

    /// Uses the server. Returns the seconds and the results.
    fn work(&self) -> Result<(f64, String)> {
        let begin = Instant::now();
        let bench = [
            "--no-vacuum",
            "--client=4",
            "--jobs=2",
            "--transactions=2000",
            "--random-seed=1",
        ];
        self.client("pgbench", &bench)?;
        let output = self.client(
            "psql",
            &[
                "-XAtq",
                "--set=ON_ERROR_STOP=1",
                "-f",
                &self.queries.to_string_lossy(),
            ],
        )?;
        Ok((begin.elapsed().as_secs_f64(), output))
    }

    fn start(&self, allocator: &Allocator, data: &str) -> Result<Server> {
        let mut command = self.as_user("postgres");
        command.args(["-D", data, "-k"]).arg(&self.folder);
        for setting in [
            "listen_addresses=",
            "fsync=off",
            "autovacuum=off",
            "jit=off",
            "max_parallel_workers_per_gather=0",
            "shared_buffers=64MB",
            "work_mem=64MB",
        ] {
            command.args(["-c", setting]);
        }
        let mut server = Server::start(allocator, command, self.folder.join("log"))?;
        server.wait_until(|| self.client("psql", &["-Xc", "select 1"]).is_ok())?;
        Ok(server)
    }

    /// Stops the server. Returns the resources that it and its children used.
    fn stop(&self, server: Server) -> Result<ResourceUsage> {
        let mut command = Command::new("kill");
        // The server ends its sessions and writes its data at this signal.
        command.args(["-INT", &server.id().to_string()]);
        succeed(command)?;
        server.end()
    }

    fn client(&self, name: &str, args: &[&str]) -> Result<String> {
        let mut command = Command::new(self.bin.join(name));
        command
            .args(args)
            .arg("postgres")
            .env("PGHOST", &self.folder)
            .env("PGUSER", "postgres")
            .env_remove("PGPORT");
        succeed(command)
    }

    /// Returns a command of the server, to be run in the folder as a user other than root.
    fn as_user(&self, name: &str) -> Command {
        let program = self.bin.join(name);
        let mut command = match self.user {
            Some(user) => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", user, "--init-groups"]).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.current_dir(&self.folder);
        command
    }
}

/// Measures the private bytes of a process and its children until `stop` is set, and returns their peak.
fn peak_of_processes(parent: u32, stop: &AtomicBool) -> u64 {
    let private = |id: &str| {
        let rollup = std::fs::read_to_string(format!("/proc/{id}/smaps_rollup")).unwrap_or_default();
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss_Anon:"));
        line.and_then(|line| line.trim_end_matches("kB").trim().parse::<u64>().ok())
            .unwrap_or(0)
            << 10
    };
    let mut peak = 0;
    while !stop.load(Relaxed) {
        let children =
            std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        let children = children.split_whitespace().map(private).sum::<u64>();
        peak = peak.max(children + private(&parent.to_string()));
        std::thread::sleep(Duration::from_millis(20));
    }
    peak
}

/// Runs a command and returns its output. Fails with its errors.
fn succeed(mut command: Command) -> Result<String> {
    let output = command
        .output()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let program = command.get_program().display();
        return Err(format!(
            "{program}: {}: {}",
            output.status,
            errors.lines().last().unwrap_or("no message")
        )
        .into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
