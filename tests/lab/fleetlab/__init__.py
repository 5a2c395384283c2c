"""fleetlab: a fleet of real hosts on one Linux machine, for tests and demos (run as root).

A node is a network namespace plus own mount, PID, UTS and IPC namespaces, with its own address,
hostname, processes, users, $HOME, /tmp, /etc, host key, sshd and avahi-daemon:

    root side: fl0 10.77.0.1/24 --+-- fl-1 10.77.0.11  (eth0; /: the host's / under a private,
                                  +-- fl-2 10.77.0.12   writable overlay; sshd; mDNS _ssh._tcp)
                                  +-- fl-ctl 10.77.0.2  (network only: where `ctl` runs commands)

Nothing is routed out. What a node changes in its files survives kill/boot, and goes with `down`.

    up [--nodes N] [--with TRAIT[+TRAIT]]... [--zoo] [--delay-ms X] [--rate-mbit Y] [--hostnames a,b]
                            make a lab (an earlier one goes first): N plain nodes, then one more
                            for each --with; --zoo adds one node for each trait that there is
    exec [-u USER] NODE CMD run CMD inside a node, as root unless told (one string: a shell line)
    ctl CMD...              run CMD (host files) in fl-ctl, which sees the fleet and nothing else;
                            a program that multicasts on every interface is safe to start there
    link NODE|all [--delay-ms X] [--rate-mbit Y] [--loss-pct Z]      what is not given goes off
    memory NODE|all [--mib N]  N MiB for all that runs there; without --mib no limit any more
    cut NODE [--silent]     cable out (silent: the host answers ARP and drops all the rest)
    heal NODE               undo cut
    kill NODE               power loss: cable out, then SIGKILL to everything in the node
    boot NODE               start a killed node again; its files are as they were
    status | traits         what is there and whether its sshd answers | the traits that there are
    down                    remove all of it; safe to repeat, and after a crash

Start it with `python -m fleetlab VERB` in the folder that holds this package.

Written to $FLEETLAB_DIR (default: fleetlab in the system's temporary folder): lab.json (for tests to
read), id_ed25519, id_locked (its passphrase is in lab.json), known_hosts, ssh_config (ssh -F),
log/NODE.log; in each node /var/log/sshd.log and avahi.log.
Delay: X ms on what a node sends, so a ping takes X from the root side and 2X between two nodes. Not every kernel has
netem, so a small process per delayed node makes it: see wire.py. Rate is tc's tbf, both ways. Memory is a control
group (v1 or v2), which the node sees as a container does. Needs python3, iproute2, util-linux, openssh-server,
openssl, avahi-daemon (mDNS), and fish, tcsh and busybox for those traits. --bin or $FLEETLAB_BIN: folder with llama-
server and ggml-rpc-server, for every node's PATH; --models or $FLEETLAB_MODELS: /opt/fleetlab/models there.
"""
