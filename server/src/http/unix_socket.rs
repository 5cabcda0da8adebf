//! A Unix socket under a path: which files it may replace, and that its own is gone when the server ends.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Why a path cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum UnixSocketError {
    /// A server is there.
    #[error("--uds {}: another server listens there; stop it or choose another path", path.display())]
    Live {
        /// As given.
        path: PathBuf,
    },
    /// A server that loads its model will be.
    #[error("--uds {}: another server is about to listen there; stop it or choose another path", path.display())]
    Starting {
        /// As given.
        path: PathBuf,
    },
    /// Some other file.
    #[error("--uds {}: a file is there that is no socket, and stays as it is; choose another path", path.display())]
    NoSocket {
        /// As given.
        path: PathBuf,
    },
    /// A socket without a server, of somebody else.
    #[error(
        "--uds {}: a socket of user {owner} is there, and stays as it is; remove it or choose another path",
        path.display()
    )]
    Foreign {
        /// As given.
        path: PathBuf,
        /// Its user's number.
        owner: u32,
    },
    /// The system's refusal.
    #[error(
        "--uds {}: {source}; give a path of at most 100 bytes in a folder that is there and may be written",
        path.display()
    )]
    Io {
        /// As given.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// A socket that listens under its path with `~` behind it until the server serves: clients find nothing before, and a
/// second server finds that the place is taken.
#[derive(Debug)]
pub struct UnixSocket {
    path: PathBuf,
    listener: UnixListener,
    waiting: SocketFile,
}

/// The file of a socket; removed with this, unless another one has taken its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl SocketFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

impl UnixSocket {
    /// Takes a path: nothing is there, or a socket of this user whose server has gone.
    ///
    /// # Errors
    /// [`UnixSocketError`].
    pub fn bind(path: &Path) -> Result<Self, UnixSocketError> {
        let io = |source| UnixSocketError::Io {
            path: path.to_owned(),
            source,
        };
        let mut waiting = path.as_os_str().to_owned();
        waiting.push("~");
        let waiting = PathBuf::from(waiting);
        make_free(&waiting).map_err(|error| match error {
            UnixSocketError::Live { .. } => UnixSocketError::Starting { path: path.to_owned() },
            error => error,
        })?;
        let listener = UnixListener::bind(&waiting).map_err(io)?;
        let waiting = SocketFile {
            inode: inode(&waiting).map_err(io)?,
            path: waiting,
        };
        make_free(path)?;
        listener.set_nonblocking(true).map_err(io)?;
        Ok(UnixSocket {
            path: path.to_owned(),
            listener,
            waiting,
        })
    }

    /// Takes its own name; clients may come.
    ///
    /// # Errors
    /// [`UnixSocketError`].
    pub fn listen(self) -> Result<(UnixListener, SocketFile), UnixSocketError> {
        make_free(&self.path)?;
        std::fs::rename(&self.waiting.path, &self.path).map_err(|source| UnixSocketError::Io {
            path: self.path.clone(),
            source,
        })?;
        let file = SocketFile {
            path: self.path,
            inode: self.waiting.inode,
        };
        Ok((self.listener, file))
    }
}

/// Removes a socket of this user that nobody listens on.
fn make_free(path: &Path) -> Result<(), UnixSocketError> {
    let owned = || path.to_owned();
    let io = |source| UnixSocketError::Io { path: owned(), source };
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io(error)),
    };
    if !found.file_type().is_socket() {
        return Err(UnixSocketError::NoSocket { path: owned() });
    }
    if is_live(path).map_err(io)? {
        return Err(UnixSocketError::Live { path: owned() });
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(UnixSocketError::Foreign {
            path: owned(),
            owner: found.uid(),
        });
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io(error)),
        _ => Ok(()),
    }
}

/// Whether somebody listens. Never waits: a server whose queue is full is one too.
fn is_live(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        // A socket of datagrams (PROTOTYPE) is another program's; one without rights may be.
        Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS | Errno::PROTOTYPE | Errno::ACCESS) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("halyard-uds-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).expect("made");
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = Folder::new("stale");
        let path = folder.0.join("socket");
        drop(UnixListener::bind(&path).expect("binds"));
        assert!(path.exists(), "a server that died leaves its file");
        let (listener, file) = UnixSocket::bind(&path).expect("stale").listen().expect("listens");
        assert!(UnixStream::connect(&path).is_ok());
        let error = UnixSocket::bind(&path).expect_err("live");
        assert!(matches!(error, UnixSocketError::Live { .. }), "{error}");
        assert!(UnixStream::connect(&path).is_ok(), "it is left alone");
        drop((listener, file));
        let left: Vec<_> = std::fs::read_dir(&folder.0).expect("a folder").collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn a_server_that_still_loads_holds_its_path_without_answering() {
        let folder = Folder::new("loading");
        let path = folder.0.join("socket");
        let first = UnixSocket::bind(&path).expect("free");
        assert!(UnixStream::connect(&path).is_err(), "not before it serves");
        let error = UnixSocket::bind(&path).expect_err("taken");
        assert!(matches!(error, UnixSocketError::Starting { .. }), "{error}");
        drop(first);
        assert!(UnixSocket::bind(&path).is_ok(), "it has given up");
    }

    #[test]
    fn other_files_stay_as_they_are() {
        let folder = Folder::new("other");
        let path = folder.0.join("file");
        std::fs::write(&path, "text").expect("writes");
        let error = UnixSocket::bind(&path).expect_err("a file");
        assert!(matches!(error, UnixSocketError::NoSocket { .. }), "{error}");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "text");
        let path = folder.0.join("datagrams");
        let _other = UnixDatagram::bind(&path).expect("binds");
        assert!(UnixSocket::bind(&path).is_err());
        let error = UnixSocket::bind(&folder.0.join("x".repeat(120))).expect_err("too long");
        assert!(error.to_string().contains("at most 100 bytes"), "{error}");
        let error = UnixSocket::bind(&folder.0.join("no/such")).expect_err("no folder");
        assert!(error.to_string().contains("No such file"), "{error}");
    }

    #[test]
    fn a_successors_file_is_not_removed() {
        let folder = Folder::new("successor");
        let path = folder.0.join("socket");
        let (_listener, file) = UnixSocket::bind(&path).expect("free").listen().expect("listens");
        std::fs::remove_file(&path).expect("somebody removed it");
        let _second = UnixListener::bind(&path).expect("binds");
        drop(file);
        assert!(path.exists());
    }
}
