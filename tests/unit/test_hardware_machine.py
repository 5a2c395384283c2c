"""Memory, processor, disks and network of a node."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.model import Disk, LinkKind, Memory
from fleet.nodes.hardware.disks import read_disks
from fleet.nodes.hardware.figures import fraction, number, size, whole
from fleet.nodes.hardware.memory import read_meminfo, read_vm_stat, with_limits
from fleet.nodes.hardware.network import read_hardware_ports, read_interfaces, read_links
from fleet.nodes.hardware.processor import read_cpuinfo, read_loadavg, read_sysctl

DATA = Path(__file__).parents[1] / "data"
KIB, GIB = 1024, 1 << 30


def read(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def test_memory_is_what_meminfo_says():
    assert read_meminfo(read("mem/meminfo_normal.txt")) == Memory(131790112 * KIB, 98233020 * KIB)


@pytest.mark.parametrize("name", ["mem/meminfo_blank_lxcfs.txt", "mem/meminfo_zero_total_lxcfs.txt"])
def test_a_container_that_hides_its_memory_has_unknown_memory_not_none(name: str):
    assert read_meminfo(read(name)) == Memory(None, None)


def test_a_cache_larger_than_the_memory_makes_no_nonsense():
    told = read_meminfo("MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 0 kB\nCached: 5000 kB\n")
    assert told == Memory(1000 * KIB, 1000 * KIB)


def test_the_tightest_control_group_is_the_limit_and_its_page_cache_can_be_taken_back():
    told = with_limits(Memory(64 * GIB, 60 * GIB), (
        f"limit {8 * GIB}\nused {6 * GIB}\ninactive_file {3 * GIB}\nactive_file {1 * GIB}\n"
        f"limit {16 * GIB}\nused {15 * GIB}\ninactive_file 0\n"))
    assert told == Memory(8 * GIB, 1 * GIB)
    assert with_limits(Memory(), f"limit {8 * GIB}\nused \n") == Memory(8 * GIB, None)


def test_a_macs_memory_comes_from_vm_stat():
    text = ("Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free:                 1000.\n"
            "Pages active:   9.\nPages inactive:  2000.\nPages speculative:  30.\nPages purgeable:  4.\n")
    assert read_vm_stat(text, 32 * GIB) == Memory(32 * GIB, 3034 * 16384)
    assert read_vm_stat("", None) == Memory()


def test_cores_are_counted_by_their_siblings():
    text = "model name\t: AMD EPYC\nflags\t\t: fpu sse4_2 avx2 avx512f amx_int8 something\n"
    cpu = read_cpuinfo(text, "0,4\n1,5\n2,6\n3,7\n0,4\n1,5\n2,6\n3,7\n", "8")
    assert (cpu.model, cpu.cores, cpu.threads) == ("AMD EPYC", 4, 8)
    assert cpu.features == ("sse4_2", "avx2", "avx512f", "amx_int8")
    assert read_cpuinfo(text, "0,4\n1,5\n0,4\n1,5\n", "1").cores == 1      # we may use just one


def test_an_arm_processor_is_named_by_its_parts_and_its_board():
    text = ("processor\t: 0\nFeatures\t: fp asimd asimddp i8mm sve2\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n\n"
            "Hardware\t: BCM2835\nModel\t\t: Raspberry Pi 5 Model B Rev 1.0\n")
    cpu = read_cpuinfo(text, "0\n1\n2\n3\n", "4")
    assert cpu.model == "Raspberry Pi 5 Model B Rev 1.0 (Cortex-A76)"
    assert cpu.features == ("neon", "dotprod", "i8mm", "sve2") and cpu.cores == 4
    both = read_cpuinfo("CPU part\t: 0xd87\nCPU part\t: 0xd85\nCPU part\t: 0xd87\n")
    assert both.model == "Cortex-A725 + Cortex-X925" and both.threads == 0


def test_a_macs_processor_comes_from_sysctl():
    cpu = read_sysctl({"machdep.cpu.brand_string": "Apple M3 Max", "hw.physicalcpu": "16", "hw.logicalcpu": "16",
                       "vm.loadavg": "{ 1.52 1.60 1.70 }", "hw.optional.arm.FEAT_I8MM": "1", "hw.optional.neon": "1",
                       "hw.optional.arm.FEAT_SME": "0"})
    assert (cpu.model, cpu.cores, cpu.load, set(cpu.features)) == ("Apple M3 Max", 16, 1.52, {"i8mm", "neon"})


def test_load_is_read_or_unknown():
    assert read_loadavg("0.29 0.16 0.09 2/100 13917") == 0.29
    assert read_loadavg("{ 1,52 1,60 1,70 }") == 1.52
    assert read_loadavg("") is None


DF = """Filesystem     1024-blocks     Used Available Capacity Mounted on
/dev/vda         264212084 23604368  82786544      23% /
my nas:/export/some models   1000  1000  0  100% /mnt/models with spaces
"""


def test_each_folder_has_its_row_of_df():
    assert read_disks(DF, ["/root", "/mnt/m"], frozenset({"/root"})) == (
        Disk("/root", 264212084 * KIB, 82786544 * KIB, True), Disk("/mnt/m", 1000 * KIB, 0, False))


def test_a_row_too_few_makes_sizes_unknown_rather_than_those_of_another_disk():
    assert read_disks(DF, ["/root", "/mnt/hangs", "/mnt/m"], frozenset())[0] == Disk("/root", None, None, False)


LINKS = """lo unknown - 772
eth0 up 2500 1 device
wlp3s0 up - 1 wireless phy80211 device DEVTYPE=wlan
docker0 down - 1 bridge DEVTYPE=bridge
tailscale0 unknown -1 65534 tun_flags
enp9s0 up 40000 1 device
"""


def test_interfaces_have_the_kind_that_sysfs_knows():
    interfaces = {i.name: i for i in read_interfaces(read("net/ip_json_addresses.json"), links=read_links(LINKS))}
    assert {name: i.kind for name, i in interfaces.items()} == {
        "lo": LinkKind.LOOPBACK, "eth0": LinkKind.WIRED, "wlp3s0": LinkKind.WIFI, "docker0": LinkKind.CONTAINER,
        "tailscale0": LinkKind.VPN, "enp9s0": LinkKind.WIRED}
    assert interfaces["eth0"].speed == 2_500_000_000 and interfaces["enp9s0"].speed == 40_000_000_000
    assert interfaces["tailscale0"].speed is None and interfaces["tailscale0"].up and not interfaces["docker0"].up
    assert interfaces["eth0"].addresses[0] == "10.20.0.14/24"


def test_names_that_say_nothing_are_settled_by_sysfs():
    text = '[{"ifname":"end0x","operstate":"UP","addr_info":[]},{"ifname":"home","operstate":"UNKNOWN","addr_info":[]}]'
    links = read_links("end0x up 1000 1 device\nhome unknown - 65534 DEVTYPE=wireguard\n")
    assert [i.kind for i in read_interfaces(text, links=links)] == [LinkKind.WIRED, LinkKind.VPN]


def test_an_ip_without_json_is_read_as_well():
    text = ("1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever\n"
            "2: eth0    inet 10.20.0.14/24 brd 10.20.0.255 scope global eth0\n"
            "2: eth0    inet6 fe80::1/64 scope link \n")
    assert [(i.name, i.kind, i.addresses) for i in read_interfaces("", text)] == [
        ("lo", LinkKind.LOOPBACK, ("127.0.0.1/8",)), ("eth0", LinkKind.WIRED, ("10.20.0.14/24", "fe80::1%eth0/64"))]


MAC_IFCONFIG = """lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384
\tinet 127.0.0.1 netmask 0xff000000
en0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tinet6 fe80::1c2b:aaaa:bbbb:cccc%en0 prefixlen 64 secured scopeid 0xb
\tinet 10.20.1.30 netmask 0xffffff00 broadcast 10.20.1.255
\tstatus: active
en5: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tstatus: inactive
utun3: flags=8051<UP,POINTOPOINT,RUNNING,MULTICAST> mtu 1280
\tinet 100.64.0.30 --> 100.64.0.30 netmask 0xffffffff
"""
MAC_PORTS = """
Hardware Port: Ethernet Adapter (en5)
Device: en5
Ethernet Address: aa:bb:cc:dd:ee:ff

Hardware Port: Wi-Fi
Device: en0
Ethernet Address: aa:bb:cc:dd:ee:fe
"""


def test_a_macs_en0_is_wifi_when_its_hardware_port_says_so():
    found = read_interfaces(ifconfig=MAC_IFCONFIG, ports=read_hardware_ports(MAC_PORTS))
    assert [(i.name, i.kind, i.up) for i in found] == [
        ("lo0", LinkKind.LOOPBACK, True), ("en0", LinkKind.WIFI, True), ("en5", LinkKind.WIRED, False),
        ("utun3", LinkKind.VPN, True)]
    assert found[1].addresses == ("fe80::1c2b:aaaa:bbbb:cccc%en0/64", "10.20.1.30/24")


def test_busyboxs_ifconfig_is_read_as_well():
    text = ("eth0      Link encap:Ethernet  HWaddr AA:BB\n"
            "          inet addr:10.20.0.9  Bcast:10.20.0.255  Mask:255.255.255.0\n"
            "          inet6 addr: fe80::2/64 Scope:Link\n")
    (interface,) = read_interfaces(ifconfig=text)
    assert (interface.name, interface.addresses) == ("eth0", ("10.20.0.9/24", "fe80::2%eth0/64"))


@pytest.mark.parametrize(("text", "expected"), [
    ("1536 MB", 1536 << 20), ("4 GB", 4 << 30), ("24564 MiB", 24564 << 20), ("7", 7), ("[N/A]", None), ("-5", None),
    ("9" * 40, None), ("1e9", None), ("", None), ("12 parsecs", None), ("0.5 GB", 1 << 29)])
def test_sizes(text: str, expected: int | None):
    assert size(text) == expected


@given(st.text(max_size=400))
def test_no_text_whatsoever_breaks_a_reader(text: str):
    for convert in (whole, number, size, fraction, read_loadavg, read_meminfo, read_links, read_hardware_ports):
        convert(text)
    with_limits(Memory(5, 5), text)
    read_vm_stat(text, 10)
    read_cpuinfo(text, text, text)
    read_disks(text, ["/a", "/b"], frozenset())
    read_interfaces(text, text, text, read_links(text))


WORDS = ["inet", "inet6", "addr:1.2.3.4", "eth0:", "flags=1<UP>", "netmask", "0xffffff00", "\n", " ", "\t", "prefixlen",
         "999", "fe80::1", "255.255.255.999", "Link encap:", "limit", "used", "-1", "9" * 20, "%", "/",
         "/dev/sda", "\0"]


@given(st.lists(st.sampled_from(WORDS), max_size=40).map("".join))
def test_no_shuffled_listing_breaks_a_reader(text: str):
    read_interfaces("", text, text)
    with_limits(Memory(), text)
    read_disks(text, ["/a"], frozenset())
