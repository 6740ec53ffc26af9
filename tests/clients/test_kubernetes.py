"""The manifests of deploy/kubernetes: they match the schemas of Kubernetes, their parts fit each other, and
the server accepts their settings. They are not applied to a cluster of Kubernetes here.

The script that the init containers run is tested with the server in tests/src/deploy.rs.
"""

import os
import pathlib
import re
import subprocess

import kubernetes_validate
import pytest
import yaml

FOLDER = pathlib.Path(__file__).parents[2] / "deploy" / "kubernetes"
# Without peers, and the two parts of a cluster.
SETS = {"alone": ["mlgw.yaml"], "cluster": ["cluster.yaml", "gateway.yaml"]}
FILES = sorted(name for names in SETS.values() for name in names)
# Versions of Kubernetes: the pod disruption budget needs 1.25 at least, and 1.37 is the newest.
VERSIONS = ["1.25", "1.37"]
NODE_PORT = 9003


def read(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


class Manifests:
    """The resources of some files."""

    def __init__(self, names):
        self.resources = [resource for name in names for resource in read(name)]

    def of(self, kind):
        return [resource for resource in self.resources if resource["kind"] == kind]

    def get(self, kind, name):
        found = [resource for resource in self.of(kind) if resource["metadata"]["name"] == name]
        assert len(found) == 1, f"{kind} {name} exists {len(found)} times"
        return found[0]

    def variables(self, stateful_set, container):
        """The environment of a container of the first pod of a set."""
        found = {}
        for source in container.get("envFrom", []):
            if "configMapRef" in source:
                found |= self.get("ConfigMap", source["configMapRef"]["name"])["data"]
            else:
                found |= self.get("Secret", source["secretRef"]["name"])["stringData"]
        for variable in container.get("env", []):
            value = variable.get("value", stateful_set["metadata"]["name"] + "-0")
            found[variable["name"]] = value.replace("$(NODE_NAME)", found.get("NODE_NAME", ""))
        return found


def spec_of(stateful_set):
    return stateful_set["spec"]["template"]["spec"]


def containers(stateful_set):
    spec = spec_of(stateful_set)
    return spec.get("initContainers", []) + spec["containers"]


def labels_of(stateful_set):
    return stateful_set["spec"]["template"]["metadata"]["labels"]


def selects(selector, stateful_set):
    return selector.items() <= labels_of(stateful_set).items()


def ports_of(stateful_set):
    return {port["name"]: port["containerPort"] for port in spec_of(stateful_set)["containers"][0]["ports"]}


@pytest.fixture(params=SETS)
def manifests(request):
    return Manifests(SETS[request.param])


@pytest.fixture
def cluster():
    return Manifests(SETS["cluster"])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FILES)
def test_every_resource_matches_the_schema_of_kubernetes(name, version):
    for resource in read(name):
        kubernetes_validate.validate(resource, version, strict=True)


def test_every_manifest_is_tested():
    assert sorted(path.name for path in FOLDER.glob("*.yaml")) == FILES


def test_a_field_that_does_not_exist_is_refused():
    resource = read("cluster.yaml")[-1]
    resource["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(resource, VERSIONS[-1], strict=True)


def test_names_are_unique(manifests):
    names = [(resource["kind"], resource["metadata"]["name"]) for resource in manifests.resources]
    assert len(names) == len(set(names))


def test_every_service_selects_pods_with_its_ports(manifests):
    for service in manifests.of("Service"):
        sets = [one for one in manifests.of("StatefulSet") if selects(service["spec"]["selector"], one)]
        assert len(sets) == 1, service["metadata"]["name"]
        for port in service["spec"]["ports"]:
            assert ports_of(sets[0])[port["targetPort"]] == port["port"]


def test_pods_have_what_they_refer_to(manifests):
    for one in manifests.of("StatefulSet"):
        service = manifests.get("Service", one["spec"]["serviceName"])
        assert selects(service["spec"]["selector"], one)
        assert one["spec"]["selector"]["matchLabels"].items() <= labels_of(one).items()
        claims = {claim["metadata"]["name"] for claim in one["spec"]["volumeClaimTemplates"]}
        for container in containers(one):
            assert {mount["name"] for mount in container["volumeMounts"]} == claims
        server = spec_of(one)["containers"][0]
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"]:
            assert server[probe]["httpGet"]["port"] in ports_of(one)
        assert server["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert server["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_no_container_has_rights_that_it_does_not_need(manifests):
    for one in manifests.of("StatefulSet"):
        spec = spec_of(one)
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        for container in containers(one):
            rights = container["securityContext"]
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["readOnlyRootFilesystem"] is True
            assert rights["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]


def test_the_server_accepts_the_settings_of_every_container(manifests):
    for one in manifests.of("StatefulSet"):
        for container in containers(one):
            variables = manifests.variables(one, container)
            environment = {"PATH": os.environ["PATH"]} | variables
            shown = subprocess.run(
                [os.environ["MLGW_BIN"], "config", "show"],
                env=environment, capture_output=True, text=True, check=False,
            )
            assert shown.returncode == 0, shown.stderr
            ports = {
                "s3": variables["MLGW_S3__LISTEN"],
                "metrics": variables["MLGW_METRICS__LISTEN"],
                "admin": variables.get("MLGW_ADMIN__LISTEN"),
                "peers": variables.get("MLGW_CLUSTER__LISTEN"),
            }
            given = {name: int(address.rsplit(":", 1)[1]) for name, address in ports.items() if address}
            assert given == ports_of(one)


def test_a_grace_period_covers_the_drain_of_requests(manifests):
    for one in manifests.of("StatefulSet"):
        # s3.shutdown_delay 5s, drain_timeout 30s, the hand-over of leaderships 5s, and the syncs.
        assert spec_of(one)["terminationGracePeriodSeconds"] >= 5 + 30 + 5 + 30


def test_pods_find_each_other_by_the_names_of_their_set(cluster):
    storage = cluster.get("StatefulSet", "mlgw")
    settings = cluster.get("ConfigMap", "mlgw-cluster")["data"]
    service = storage["spec"]["serviceName"]
    hosts = [f"mlgw-{number}.{service}" for number in range(storage["spec"]["replicas"])]
    assert settings["MLGW_CLUSTER__SEEDS"] == ",".join(f"{host}:{NODE_PORT}" for host in hosts)
    assert settings["ADMIN_URLS"] == " ".join(f"http://{host}:9001" for host in hosts)
    assert int(settings["STORAGE_NODES"]) == len(hosts)
    assert settings["FIRST_NODE"] == "mlgw-0"
    for one in cluster.of("StatefulSet"):
        name, service = one["metadata"]["name"], one["spec"]["serviceName"]
        found = {cluster.variables(one, each)["MLGW_CLUSTER__ADDRESS"] for each in containers(one)}
        assert found == {f"{name}-0.{service}:{NODE_PORT}"}
        headless = cluster.get("Service", service)["spec"]
        # A pod needs the others before it is ready.
        assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
        assert one["spec"]["podManagementPolicy"] == "Parallel"


def test_one_pod_at_a_time_is_disrupted_and_each_has_its_own_host(cluster):
    for one in cluster.of("StatefulSet"):
        budgets = cluster.of("PodDisruptionBudget")
        budgets = [each for each in budgets if selects(each["spec"]["selector"]["matchLabels"], one)]
        assert [each["spec"]["maxUnavailable"] for each in budgets] == [1]
        affinity = spec_of(one)["affinity"]["podAntiAffinity"]
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert selects(term["labelSelector"]["matchLabels"], one)


def test_the_secret_is_in_the_init_containers_alone(cluster):
    for one in cluster.of("StatefulSet"):
        (prepare, server) = containers(one)
        assert "MLGW_ROOT_SECRET_ACCESS_KEY" in cluster.variables(one, prepare)
        assert "MLGW_ROOT_SECRET_ACCESS_KEY" not in cluster.variables(one, server)


def test_the_init_containers_have_every_variable_of_the_script(cluster):
    script = (FOLDER / "mlgw-prepare.sh").read_text()
    required = set(re.findall(r"\$\{([A-Z_]+):\?\}", script))
    assert len(required) >= 8
    dockerfile = (FOLDER.parent / "docker" / "Dockerfile").read_text()
    for one in cluster.of("StatefulSet"):
        prepare = containers(one)[0]
        assert required <= cluster.variables(one, prepare).keys()
        (command,) = prepare["command"]
        assert f"COPY deploy/kubernetes/mlgw-prepare.sh {command}\n" in dockerfile


def test_only_pods_of_the_cluster_reach_the_admin_api_and_the_peers(cluster):
    policy = cluster.get("NetworkPolicy", "mlgw")["spec"]
    public = [rule for rule in policy["ingress"] if "from" not in rule]
    assert [port["port"] for rule in public for port in rule["ports"]] == ["s3", "metrics"]
    for one in cluster.of("StatefulSet"):
        assert selects(policy["podSelector"]["matchLabels"], one)
        (source,) = [rule["from"][0]["podSelector"] for rule in policy["ingress"] if "from" in rule]
        assert selects(source["matchLabels"], one)
