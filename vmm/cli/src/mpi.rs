//! Runs whose processes a launcher of MPI has started: `mpirun nodescope run` and `srun --mpi=... nodescope run`.

use std::path::PathBuf;

use nodescope_distributed::Key;
use nodescope_distributed::mpi::{Launch, MpiError, World};
use serde::{Deserialize, Serialize};

use crate::args::{self, MpiChoice};
use crate::exit::{Exit, Failure};
use crate::interrupt::outlive_death_notices;

/// What the first process tells all others before the run.
#[derive(Serialize, Deserialize)]
struct Invitation {
    /// Addresses of the master, one of which each process reaches.
    addresses: Vec<String>,
    /// Text of the run's key.
    key: String,
}

/// The processes that the launcher has started, until they have formed a group.
pub struct Launched {
    world: Option<World>,
}

impl Launched {
    /// Starts MPI if a launcher has started several processes, and the user does not refuse.
    pub fn find(args: &args::Run) -> Result<Option<Self>, Failure> {
        let launch = match (&args.mpi, Launch::find()) {
            (MpiChoice::Off, _) | (MpiChoice::Auto, None) => return Ok(None),
            (MpiChoice::File(file), None) => {
                return Err(Failure::new(
                    Exit::Study,
                    format!(
                        "--mpi {}: no launcher of MPI has started several processes of this run; start it by mpirun or by srun --mpi=pmix",
                        file.display()
                    ),
                ));
            }
            (_, Some(launch)) => launch,
        };
        let begun = match args.workers {
            None => begin(&launch, &args.mpi),
            Some(_) => Err(Failure::new(
                Exit::Study,
                "--workers: the launcher of MPI has started the processes of this run; leave --workers out",
            )),
        };
        // Every process finds the same fault, and one message is enough.
        let begun = begun.map_err(|failure| match launch.rank {
            0 => failure,
            _ => silent(failure.exit),
        });
        let world = Some(begun?);
        // The library may have installed a handler, which then runs as well.
        outlive_death_notices()?;
        Ok(Some(Self { world }))
    }

    fn world(&self) -> &World {
        self.world.as_ref().expect("it is taken at the end only")
    }

    /// Returns the number of this process.
    pub fn rank(&self) -> usize {
        self.world().rank()
    }

    /// Returns the number of processes beside the master.
    pub fn workers(&self) -> u32 {
        self.world().size() as u32 - 1
    }

    /// Tells all other processes how to reach this process, the master. `port` is the end of the address at which the master listens.
    pub fn invite(mut self, hosts: &[String], port: &str, key: &Key) -> Result<World, Failure> {
        let invitation = Invitation {
            addresses: hosts
                .iter()
                .map(|host| format!("tcp://{host}:{port}"))
                .collect(),
            key: key.text(),
        };
        let mut world = self.world.take().expect("it is taken here only");
        let text = serde_json::to_vec(&invitation).expect("plain values have a form in JSON");
        world.tell_all(&text).map_err(mpi_failure)?;
        Ok(world)
    }

    /// Waits for the master's invitation. Returns the master's addresses and the key; `None` if the master has given up the run.
    pub fn accept(mut self) -> Result<Option<(Vec<String>, Key, World)>, Failure> {
        let mut world = self.world.take().expect("it is taken here only");
        let text = world.told().map_err(mpi_failure)?;
        if text.is_empty() {
            world.end();
            return Ok(None);
        }
        let unreadable = |error: &dyn std::fmt::Display| {
            Failure::new(Exit::Host, format!("the master's invitation: {error}"))
        };
        let invitation: Invitation =
            serde_json::from_slice(&text).map_err(|error| unreadable(&error))?;
        let key =
            Key::parse(&invitation.key, "the invitation").map_err(|error| unreadable(&error))?;
        Ok(Some((invitation.addresses, key, world)))
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // A master that cannot begin the run lets the other processes end.
        if let Some(mut world) = self.world.take()
            && world.rank() == 0
            && world.tell_all(&[]).is_ok()
        {
            world.end();
        }
    }
}

fn begin(launch: &Launch, choice: &MpiChoice) -> Result<World, Failure> {
    let named = match choice {
        MpiChoice::File(file) => Some(file.as_path()),
        _ => None,
    };
    let images = nodescope_image::default_cache_dir();
    let images = images.map_err(|error| Failure::of(Exit::Host, &error))?;
    let cache = images.with_file_name("mpi");
    World::begin(launch, named, &cache).map_err(mpi_failure)
}

fn mpi_failure(error: MpiError) -> Failure {
    let exit = match error {
        MpiError::Call(_) => Exit::Host,
        _ => Exit::Study,
    };
    Failure::of(exit, &error)
}

/// Returns a failure that another process has told the user.
pub fn silent(exit: Exit) -> Failure {
    Failure {
        exit,
        chain: Vec::new(),
        also: None,
    }
}

/// Returns the folder of shared memory, in which a library of MPI removes its files at the end.
pub fn shared_memory(is_launched: bool) -> Option<PathBuf> {
    let folder = PathBuf::from("/dev/shm");
    (is_launched && folder.is_dir()).then_some(folder)
}

/// Returns the addresses of this host's network interfaces that are up, those of other hosts' reach first.
pub fn hosts() -> Vec<String> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let v4 = |of: &if_addrs::Interface| match of.ip() {
        std::net::IpAddr::V4(address) => Some(address),
        std::net::IpAddr::V6(_) => None,
    };
    let mut addresses: Vec<_> = interfaces.iter().filter_map(v4).collect();
    addresses.sort_by_key(|address| (address.is_loopback(), address.is_link_local()));
    addresses.iter().map(ToString::to_string).collect()
}
