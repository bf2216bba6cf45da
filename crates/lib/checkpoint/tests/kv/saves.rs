//! Saves, and restarts after them.

use std::fs;

use crate::client::{Reply, error, ok, text};
use crate::process::{METHODS, Server};

fn begun() -> Reply {
    Reply::SimpleString(b"Background saving started".to_vec())
}

#[test]
fn a_restart_loads_the_last_save_of_either_method() {
    let folder = tempfile::tempdir().unwrap();
    for (round, method) in METHODS.into_iter().chain(METHODS).enumerate() {
        let mut server = Server::start(folder.path(), method, "16M");
        let mut client = server.client();
        assert_eq!(client.words("GET saved"), if round == 0 { Reply::Null } else { text((round - 1).to_string()) });
        assert_eq!(client.words("GET unsaved"), Reply::Null);
        assert_eq!(
            client.words("LRANGE rounds 0 0"),
            Reply::Array((0..round).last().map(|last| text(last.to_string())).into_iter().collect())
        );
        client.words(&format!("SET saved {round}"));
        client.words(&format!("LPUSH rounds {round}"));
        assert_eq!(client.words("BGSAVE"), begun());
        client.wait_for_save();
        let writes = client.info("writes");
        assert_eq!(
            (client.info("last_save_writes"), client.info_text("rdb_last_bgsave_status").as_str()),
            (writes, "ok")
        );
        assert!(client.info("last_save_bytes") > 0);
        assert_eq!(client.words("SET unsaved 1"), ok());
        assert_eq!(client.info("last_save_writes"), writes);
        server.kill();
    }
}

#[test]
fn a_shutdown_saves_unless_it_must_not() {
    for method in METHODS {
        let folder = tempfile::tempdir().unwrap();
        for (shutdown, key) in [("SHUTDOWN", "a"), ("SHUTDOWN NOSAVE", "b"), ("SHUTDOWN", "c")] {
            let mut server = Server::start(folder.path(), method, "16M");
            let mut client = server.client();
            client.words(&format!("SET {key} 1"));
            assert!(client.send(&[shutdown.split(' ').collect()]));
            assert_eq!(client.receive(), None);
            assert!(server.wait());
        }
        let server = Server::start(folder.path(), method, "16M");
        let mut client = server.client();
        let values = ["GET a", "GET b", "GET c"].map(|get| client.words(get));
        assert_eq!(values, [text("1"), Reply::Null, text("1")]);
    }
}

#[test]
fn one_save_runs_at_a_time() {
    for method in METHODS {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(folder.path(), method, "64M");
        let mut client = server.client();
        client.call(vec![b"SET".to_vec(), b"large".to_vec(), vec![1; 30 << 20]]);
        assert!(client.send(&[vec!["BGSAVE"], vec!["BGSAVE"], vec!["SAVE"], vec!["PING"]]));
        assert_eq!(client.receive(), Some(begun()));
        assert_eq!(error(client.receive()), "ERR Background save already in progress");
        assert_eq!(error(client.receive()), "ERR Background save already in progress");
        assert_eq!(client.receive(), Some(Reply::SimpleString(b"PONG".to_vec())));
        client.wait_for_save();
        assert_eq!(client.words("SAVE"), ok());
    }
}

#[test]
fn a_save_that_fails_is_reported_and_the_next_one_contains_its_data() {
    for method in METHODS {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("saves");
        let mut server = Server::start(&folder, method, "16M");
        let mut client = server.client();
        client.words("SET a 1");
        assert_eq!(client.words("SAVE"), ok());
        fs::remove_dir_all(&folder).unwrap();
        client.words("SET a 2");
        assert!(error(Some(client.words("SAVE"))).starts_with("ERR cannot save: "));
        assert_eq!(client.words("BGSAVE"), begun());
        client.wait_for_save();
        assert_eq!((client.info_text("rdb_last_bgsave_status").as_str(), client.info("last_save_writes")), ("err", 1));
        fs::create_dir(&folder).unwrap();
        assert_eq!(client.words("SAVE"), ok());
        assert_eq!(client.info_text("rdb_last_bgsave_status"), "ok");
        server.kill();
        let server = Server::start(&folder, method, "16M");
        assert_eq!(server.client().words("GET a"), text("2"));
    }
}
