//! Clients that are Python packages. Each has an environment of its own, and pytest runs each file in a process of its own.

use super::Places;
use super::results::{Outcome, Results, pytest};
use crate::shell::{Result, root};
use std::path::{Path, PathBuf};
use xshell::{Shell, cmd};

/// A package with tests.
pub(super) struct Package {
    pub(super) name: &'static str,
    version: &'static str,
    /// The packages that pip installs in addition to pytest.
    packages: &'static [&'static str],
    tests: Place,
    /// The files with tests, in the folder of the tests.
    files: &'static [&'static str],
    /// The options of the emulated driver.
    driver: &'static str,
    /// Folders of the installed packages with libraries that the package expects on the loader's path.
    libraries: &'static [&'static str],
    /// More arguments for pytest.
    arguments: &'static [&'static str],
}

/// The location of the tests.
enum Place {
    /// In a folder of the installed package.
    Installed(&'static str),
    /// In a folder of the package's sources, which pip fetches as this requirement.
    Sources {
        package: &'static str,
        folder: &'static str,
    },
    /// In a folder of a checkout of the project at this tag. The variable contains the path of the checkout. No package index has these tests.
    Checkout {
        variable: &'static str,
        project: &'static str,
        tag: &'static str,
        folder: &'static str,
        /// A folder of the checkout, whose modules the tests import.
        helpers: Option<&'static str>,
    },
}

pub(super) const CUDA_PYTHON: Package = Package {
    name: "cuda-python",
    version: "12.6.0",
    // Later versions come without their tests.
    packages: &[
        "cuda-python==12.6.0",
        "numpy==2.3.5",
        "nvidia-cuda-runtime-cu12==12.6.77",
        "nvidia-cuda-nvrtc-cu12==12.6.85",
    ],
    tests: Place::Installed("cuda/tests"),
    files: &[
        "test_cuda.py",
        "test_cudart.py",
        "test_cython.py",
        "test_interoperability.py",
        "test_kernelParams.py",
        "test_nvrtc.py",
    ],
    driver: "devices:2,memory:4G,streams:threads",
    libraries: &["nvidia/cuda_nvrtc/lib"],
    arguments: &["--import-mode=importlib"],
};

pub(super) const CUDA_CORE: Package = Package {
    name: "cuda.core",
    version: "1.1.0",
    packages: &[
        "cuda-core==1.1.0",
        "cuda-bindings==13.5.0",
        "numpy==2.3.5",
        "nvidia-cuda-runtime==13.5.37",
        "nvidia-cuda-nvrtc==13.5.37",
        "cloudpickle==3.1.2",
        "psutil==7.2.2",
        "pytest-benchmark==5.2.3",
    ],
    tests: Place::Checkout {
        variable: "MILLPOND_CUDA_PYTHON",
        project: "NVIDIA/cuda-python",
        tag: "cuda-core-v1.1.0",
        folder: "cuda_core/tests",
        helpers: Some("cuda_python_test_helpers"),
    },
    files: &[
        "test_context.py",
        "test_device.py",
        "test_event.py",
        "test_host.py",
        "test_memory.py",
        "test_memory_peer_access.py",
        "test_stream.py",
        "test_utils.py",
        "test_utils_dlpack.py",
        "memory/test_managed_ops.py",
        "memory_ipc/test_memory_ipc.py",
        "graph/test_graph_memory_resource.py",
    ],
    driver: "devices:2,memory:4G,streams:threads,version:13050",
    libraries: &[],
    arguments: &[],
};

pub(super) const NUMBA_CUDA: Package = Package {
    name: "numba-cuda",
    version: "0.30.4",
    packages: &[
        "numba-cuda==0.30.4",
        "cuda-bindings==12.9.10",
        "cuda-core==1.1.0",
        "numpy==2.3.5",
        "nvidia-cuda-runtime-cu12==12.9.79",
        "nvidia-cuda-nvrtc-cu12==12.9.86",
        "nvidia-cuda-nvcc-cu12==12.9.86",
        "nvidia-nvjitlink-cu12==12.9.86",
        "cffi==2.0.0",
        "filecheck==1.0.3",
        "psutil==7.2.2",
    ],
    tests: Place::Installed("numba_cuda/numba/cuda/tests/cudadrv"),
    files: &[
        "test_array_attr.py",
        "test_context_stack.py",
        "test_cuda_array_slicing.py",
        "test_cuda_auto_context.py",
        "test_cuda_devicerecord.py",
        "test_cuda_driver.py",
        "test_cuda_memory.py",
        "test_cuda_ndarray.py",
        "test_deallocations.py",
        "test_detect.py",
        "test_emm_plugins.py",
        "test_events.py",
        "test_host_alloc.py",
        "test_init.py",
        "test_managed_alloc.py",
        "test_pinned.py",
        "test_profiler.py",
        "test_reset_device.py",
        "test_runtime.py",
        "test_select_device.py",
        "test_streams.py",
        "../cudapy/test_cuda_array_interface.py",
    ],
    driver: "devices:2,memory:4G,streams:threads",
    libraries: &[],
    arguments: &["-o", "consider_namespace_packages=true", "-p", "numba_fixture"],
};

pub(super) const CUPY: Package = Package {
    name: "cupy",
    version: "14.2.0",
    packages: &[
        "cupy-cuda12x==14.2.0",
        "numpy==2.3.5",
        "nvidia-cuda-runtime-cu12==12.9.79",
        "nvidia-cuda-nvrtc-cu12==12.9.86",
        "nvidia-curand-cu12==10.3.10.19",
        "ml_dtypes==0.5.4",
    ],
    tests: Place::Sources {
        package: "cupy==14.2.0",
        folder: "tests",
    },
    files: &[
        "cupy_tests/cuda_tests/test_device.py",
        "cupy_tests/cuda_tests/test_driver.py",
        "cupy_tests/cuda_tests/test_graph.py",
        "cupy_tests/cuda_tests/test_memory.py",
        "cupy_tests/cuda_tests/test_memory_hook.py",
        "cupy_tests/cuda_tests/test_pinned_memory.py",
        "cupy_tests/cuda_tests/test_runtime.py",
        "cupy_tests/cuda_tests/test_stream.py",
        "cupy_tests/cuda_tests/memory_hooks_tests/test_debug_print.py",
        "cupy_tests/cuda_tests/memory_hooks_tests/test_line_profile.py",
        "cupy_tests/core_tests/test_dlpack.py",
    ],
    driver: "devices:2,memory:4G,streams:threads",
    libraries: &[],
    arguments: &[],
};

pub(super) const RMM: Package = Package {
    name: "rmm",
    version: "26.6.0",
    packages: &[
        "rmm-cu13==26.6.0",
        "librmm-cu13==26.6.0",
        "rapids-logger==0.2.3",
        "cuda-python==13.2.0",
        "cuda-bindings==13.2.0",
        "cuda-core==0.7.0",
        "numba==0.64.0",
        "numba-cuda==0.28.2",
        "numpy==2.3.5",
        "nvidia-cuda-runtime==13.5.37",
        "packaging==26.0",
    ],
    tests: Place::Checkout {
        variable: "MILLPOND_RMM",
        project: "rapidsai/rmm",
        tag: "v26.06.00",
        folder: "python/rmm/rmm/tests",
        helpers: None,
    },
    files: &[
        "test_allocations.py",
        "test_arena_memory_resource.py",
        "test_binning_memory_resource.py",
        "test_callback_memory_resource.py",
        "test_cuda_async_managed_memory_resource.py",
        "test_cuda_async_memory_resource.py",
        "test_cuda_async_view_memory_resource.py",
        "test_device_buffer.py",
        "test_failure_callback_resource_adaptor.py",
        "test_fixed_size_memory_resource.py",
        "test_initialization.py",
        "test_lifecycle.py",
        "test_limiting_resource_adaptor.py",
        "test_logging.py",
        "test_pinned_host_memory_resource.py",
        "test_pool_memory_resource.py",
        "test_prefetch_resource_adaptor.py",
        "test_statistics.py",
        "test_stream.py",
        "test_tracking_resource_adaptor.py",
        "test_version.py",
    ],
    driver: "devices:2,memory:4G,streams:threads,version:13000",
    libraries: &[],
    arguments: &[],
};

/// The packages that pip installs for every client.
const PYTEST: [&str; 2] = ["pytest==8.4.2", "pytest-timeout==2.4.0"];
/// The seconds that a test may take. The plugin then ends the process.
const TEST_LIMIT: &str = "120";
/// The seconds that a file of tests may take.
const FILE_LIMIT: &str = "900";
const PIP: [&str; 5] = ["--quiet", "--retries", "1", "--timeout", "60"];

impl Package {
    /// Runs the tests, with the library's memory in pools if `package` is the folder of the package `millpond`.
    pub(super) fn run(
        &self,
        sh: &Shell,
        places: &Places,
        package: Option<&Path>,
    ) -> Result<(String, Results)> {
        let folder = places.folder.join(self.name);
        sh.create_dir(&folder)?;
        // A missing checkout is reported before anything is installed.
        let checkout = self.checkout()?;
        let python = self.environment(sh, &folder)?;
        let tests = match (&self.tests, checkout) {
            (Place::Checkout { folder, .. }, Some(checkout)) => checkout.join(folder),
            (
                Place::Sources {
                    package,
                    folder: inside,
                },
                _,
            ) => sources(sh, &folder, &python, package)?.join(inside),
            (Place::Installed(inside) | Place::Checkout { folder: inside, .. }, _) => {
                packages(sh, &python)?.join(inside)
            }
        };
        let mut results = Results::new();
        let mut allocations = 0;
        for file in self.files {
            allocations += self.file(sh, places, (&python, package), &tests, file, &mut results)?;
        }
        if package.is_some() && allocations == 0 {
            return Err("no test took memory from a pool".into());
        }
        Ok((self.version.to_owned(), results))
    }

    fn checkout(&self) -> Result<Option<PathBuf>> {
        let Place::Checkout {
            variable,
            project,
            tag,
            folder,
            ..
        } = self.tests
        else {
            return Ok(None);
        };
        let place = std::env::var_os(variable).map(PathBuf::from);
        match place {
            Some(place) if place.join(folder).is_dir() => Ok(Some(root().join(place))),
            Some(place) => Err(format!("{variable}: {} has no folder {folder}", place.display()).into()),
            None => Err(format!("{variable} is not set to a checkout of {project} at {tag}").into()),
        }
    }

    /// Returns the Python of an environment with the packages of these versions.
    fn environment(&self, sh: &Shell, folder: &Path) -> Result<PathBuf> {
        let place = folder.join("python");
        let python = place.join("bin/python");
        let (wanted, installed) = (self.packages.join("\n"), place.join("millpond-packages"));
        if sh.read_file(&installed).is_ok_and(|there| there == wanted) {
            return Ok(python);
        }
        sh.remove_path(&place)?;
        cmd!(sh, "python3 -m venv {place}").run()?;
        let packages = self.packages;
        cmd!(sh, "{python} -m pip install {PIP...} {PYTEST...} {packages...}").run()?;
        sh.write_file(installed, wanted)?;
        Ok(python)
    }

    /// Runs the tests of a file, and returns how many blocks pools have allocated for them. If a test ends the process, another process
    /// runs the tests after it.
    fn file(
        &self,
        sh: &Shell,
        places: &Places,
        (python, package): (&Path, Option<&Path>),
        tests: &Path,
        file: &str,
        results: &mut Results,
    ) -> Result<u64> {
        let folder = places.folder.join(self.name);
        let lines = folder.join(format!("{}.jsonl", file.replace('/', "-")));
        sh.remove_path(&lines)?;
        let plugins = std::iter::once(root().join("xtask/clients"));
        let helpers = match self.tests {
            Place::Checkout {
                folder,
                helpers: Some(helpers),
                ..
            } => {
                let up = folder
                    .split('/')
                    .fold(tests.to_path_buf(), |path, _| path.join(".."));
                Some(up.join(helpers))
            }
            _ => None,
        };
        let plugins = std::env::join_paths(plugins.chain(helpers).chain(package.map(Path::to_path_buf)))?;
        let driver = places.driver.clone();
        let others = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let installed = packages(sh, python)?;
        let libraries = self.libraries.iter().map(|folder| installed.join(folder));
        let libraries = std::iter::once(driver).chain(libraries);
        let libraries = std::env::join_paths(libraries.chain(std::env::split_paths(&others)))?;
        let pools: &[&str] = if package.is_some() {
            &["-p", "in_pools"]
        } else {
            &[]
        };
        let arguments = &[self.arguments, pools].concat();
        let mut ended = Results::new();
        loop {
            let _here = sh.push_dir(tests);
            let output = cmd!(
                sh,
                "timeout --kill-after 5 {FILE_LIMIT} {python} -m pytest -c /dev/null --rootdir {tests} -p report -p no:cacheprovider
                 --quiet --timeout {TEST_LIMIT} --timeout-method thread {arguments...} {file}"
            )
            .env("PYTHONPATH", &plugins)
            .env("LD_LIBRARY_PATH", &libraries)
            .env("MILLPOND_CUDA_EMU", self.driver)
            .env("MILLPOND_REPORT", &lines)
            .env("MILLPOND_IN_POOLS", self.name)
            .env("CUPY_CACHE_DIR", folder.join("cache"))
            .quiet()
            .ignore_status()
            .output()?;
            let text = sh.read_file(&lines).unwrap_or_default();
            let read = pytest(&text)?;
            if read.results.is_empty() && read.open.is_none() {
                let said = String::from_utf8_lossy(&output.stdout);
                return Err(format!("{file}: pytest did not run:\n{}", said.trim_end()).into());
            }
            let open = read.open.filter(|test| !ended.contains_key(test));
            // pytest returns 1 if tests have failed, and 5 if it has run none.
            let is_whole = matches!(output.status.code(), Some(0 | 1 | 5));
            if open.is_none() && is_whole {
                results.extend(read.results);
                results.extend(ended);
                return Ok(read.allocations);
            }
            let why = format!("its process ended too early: {}", output.status);
            let said = [output.stdout, output.stderr].concat();
            let outcome = Outcome::failed(&why, &String::from_utf8_lossy(&said));
            let Some(open) = open else {
                results.extend(read.results);
                results.extend(ended);
                results.insert(file.to_owned(), outcome);
                return Ok(read.allocations);
            };
            ended.insert(open, outcome);
        }
    }
}

/// Returns the folder of the installed packages.
fn packages(sh: &Shell, python: &Path) -> Result<PathBuf> {
    let script = "import sysconfig; print(sysconfig.get_path('platlib'))";
    Ok(cmd!(sh, "{python} -c {script}").quiet().read()?.into())
}

/// Fetches the sources of a package, which are not built. Returns their folder.
fn sources(sh: &Shell, folder: &Path, python: &Path, package: &str) -> Result<PathBuf> {
    let place = folder.join("sources");
    let name = package.replace("==", "-");
    let unpacked = place.join(&name);
    if !unpacked.exists() {
        let only = package.split("==").next().unwrap_or(package);
        cmd!(
            sh,
            "{python} -m pip download {PIP...} --no-deps --no-binary {only} --dest {place} {package}"
        )
        // With this variable, CuPy's sources can be asked for their name and version without an installed CUDA.
        .env("CUPY_INSTALL_USE_STUB", "1")
        .run()?;
        let archive = place.join(format!("{name}.tar.gz"));
        cmd!(sh, "tar -xzf {archive} -C {place}").run()?;
    }
    Ok(unpacked)
}
