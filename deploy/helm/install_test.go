package helm_test

import (
	"bytes"
	"context"
	"flag"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/kube"
	release "helm.sh/helm/v4/pkg/release/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"lockstep.internal/deploy"
	"lockstep.internal/tools/testkit/lab"
	"lockstep.internal/tools/testkit/labtest"
)

// timeout of an install on a busy machine.
const timeout = 5 * time.Minute

// cluster is a namespace of the control plane that the tests share.
type cluster struct {
	t         *testing.T
	namespace string
	client    *kubernetes.Clientset
	helm      *action.Configuration
}

func newCluster(t *testing.T, namespace string) *cluster {
	t.Helper()
	c := connect(t, namespace)
	c.createNamespace()
	return c
}

// connect returns a namespace that does not need to exist.
func connect(t *testing.T, namespace string) *cluster {
	t.Helper()
	kubeconfig := labtest.Kubeconfig(t)
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	cfg.QPS = -1
	c := &cluster{t: t, namespace: namespace}
	c.client, err = kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	flags := genericclioptions.NewConfigFlags(false)
	flags.KubeConfig, flags.Namespace = &kubeconfig, &namespace
	c.helm = action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))
	require.NoError(t, c.helm.Init(flags, namespace, "secret"))
	return c
}

// createNamespace creates a namespace in which only pods without privileges are admitted.
func (c *cluster) createNamespace() {
	c.t.Helper()
	_, err := c.client.CoreV1().Namespaces().Create(c.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: c.namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}, metav1.CreateOptions{})
	require.NoError(c.t, err)
}

func (c *cluster) newInstall() *action.Install {
	install := action.NewInstall(c.helm)
	install.ReleaseName, install.Namespace = releaseName, c.namespace
	install.Timeout, install.WaitStrategy = timeout, kube.StatusWatcherStrategy
	return install
}

func (c *cluster) install(loaded *chart.Chart, given values) *release.Release {
	c.t.Helper()
	made, err := c.newInstall().RunWithContext(c.t.Context(), loaded, given)
	require.NoError(c.t, err)
	return made.(*release.Release)
}

func (c *cluster) upgrade(loaded *chart.Chart, given values) *release.Release {
	c.t.Helper()
	upgrade := action.NewUpgrade(c.helm)
	upgrade.Namespace, upgrade.Timeout, upgrade.WaitStrategy = c.namespace, timeout, kube.StatusWatcherStrategy
	made, err := upgrade.RunWithContext(c.t.Context(), releaseName, loaded, given)
	require.NoError(c.t, err)
	return made.(*release.Release)
}

// everything that needs nothing that is not in the cluster.
func everything() values {
	return values{"relay": values{"hosts": []any{"relay.example"}}, "nats": values{"storage": values{"size": "1Gi"}}}
}

// everyService switches the services on that are off by default.
func everyService() values {
	return values{
		"runners": values{"enabled": true}, "admission": values{"enabled": true}, "router": values{"enabled": true},
		"gateway": values{"enabled": true, "zone": "ws.example"},
	}
}

func TestServerAcceptsAllObjects(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "chart-dry-run")
	// Pods are not admitted in a dry run of their Deployment. The other tests install them.
	install := c.newInstall()
	install.DryRunStrategy = action.DryRunServer
	given := merge(everything(), everyService())
	for _, s := range switches {
		if strings.HasPrefix(s.name, "TLS") {
			given = merge(given, s.change)
		}
	}
	_, err := install.RunWithContext(t.Context(), load(t), given)
	require.NoError(t, err)
	// Helm validates only. The server's admission sees each object as well.
	r := render(t, load(t), "everything", given)
	for key, document := range r.all {
		c.kubectl(strings.ReplaceAll(document, "namespace: here", "namespace: "+c.namespace), "apply", "--server-side",
			"--dry-run=server", "-f", "-")
		t.Log("accepted " + key)
	}
}

func TestInstalledChartRuns(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "chart-install")
	made := c.install(load(t), merge(everything(), everyService()))
	for _, name := range []string{"state", "deploys", "runners", "admission", "router", "gateway"} {
		d, err := c.client.AppsV1().Deployments(c.namespace).Get(t.Context(), releaseName+"-"+name, metav1.GetOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 2, d.Status.ReadyReplicas, name)
	}
	for name, replicas := range map[string]int32{"relay": 2, "nats": 3, "postgresql": 1} {
		s, err := c.client.AppsV1().StatefulSets(c.namespace).Get(t.Context(), releaseName+"-"+name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, replicas, s.Status.ReadyReplicas, name)
	}
	job := c.createKeys(made)
	require.Equal(t, "lockstep/lockstep:"+load(t).Metadata.AppVersion, job.Spec.Template.Spec.Containers[0].Image)
	c.requireMountedSecrets(made)
	before := c.secrets()
	c.createKeys(made)
	require.Equal(t, before, c.secrets(), "a second run replaces nothing")
}

// createKeys runs the command of the release's job, which no container does here, with the permissions of the job.
func (c *cluster) createKeys(made *release.Release) batchv1.Job {
	c.t.Helper()
	hooks := rendered{t: c.t, name: "hooks", all: map[string]string{}}
	for _, hook := range made.Hooks {
		require.Equal(c.t, release.HookPhaseSucceeded, hook.LastRun.Phase, hook.Name)
		hooks.all[hook.Kind+"/"+hook.Name] = hook.Manifest
		if hook.Kind != "Job" { // removed after the job
			c.kubectl(hook.Manifest, "apply", "-f", "-")
		}
	}
	job := decode[batchv1.Job](hooks, "Job/"+made.Name+"-keys")
	args := append([]string{"--kubeconfig=" + c.accountKubeconfig(job.Spec.Template.Spec.ServiceAccountName)},
		job.Spec.Template.Spec.Containers[0].Args[2:]...)
	c.lockstep(append([]string{"kubernetes", "init"}, args...)...)
	return job
}

// lockstep runs the command line.
func (c *cluster) lockstep(args ...string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), timeout)
	defer cancel()
	run := exec.CommandContext(ctx, filepath.Join(build(c.t), "lockstep"), args...)
	output, err := run.CombinedOutput()
	require.NoError(c.t, err, string(output))
}

func (c *cluster) accountKubeconfig(account string) string {
	c.t.Helper()
	token, err := c.client.CoreV1().ServiceAccounts(c.namespace).
		CreateToken(c.t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(c.t, err)
	cfg, err := clientcmd.LoadFromFile(labtest.Kubeconfig(c.t))
	require.NoError(c.t, err)
	for user := range cfg.AuthInfos {
		cfg.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	path := filepath.Join(c.t.TempDir(), "kubeconfig")
	require.NoError(c.t, clientcmd.WriteToFile(*cfg, path))
	return path
}

func (c *cluster) secrets() map[string]map[string][]byte {
	c.t.Helper()
	list, err := c.client.CoreV1().Secrets(c.namespace).
		List(c.t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=lockstep"})
	require.NoError(c.t, err)
	found := map[string]map[string][]byte{}
	for _, secret := range list.Items {
		found[secret.Name] = secret.Data
	}
	require.NotEmpty(c.t, found)
	return found
}

// requireMountedSecrets checks that the Secrets have every key that pods mount, and that the state service finds its
// keys where `lockstep nats init` puts them.
func (c *cluster) requireMountedSecrets(made *release.Release) {
	c.t.Helper()
	r := rendered{t: c.t, name: "installed", all: map[string]string{}}
	r.add(strings.ReplaceAll(made.Manifest, "namespace: "+c.namespace, "namespace: here"))
	secrets := c.secrets()
	for _, w := range r.workloads() {
		for name, keys := range secretsOf(w.template.Spec) {
			require.Contains(c.t, secrets, name, w.Name)
			for _, key := range keys {
				if key != "" {
					require.NotEmpty(c.t, secrets[name][key], "%s: %s of %s", w.Name, key, name)
				}
			}
		}
	}
	dir := c.t.TempDir()
	c.lockstep("nats", "init", "--dir", dir)
	state := decode[appsv1.Deployment](r, "Deployment/"+releaseName+"-state").Spec.Template.Spec
	for _, v := range state.Volumes {
		if v.Name != "nats-keys" {
			continue
		}
		for _, m := range state.Containers[0].VolumeMounts {
			if m.Name != v.Name {
				continue
			}
			for _, item := range v.Secret.Items {
				require.FileExists(c.t, filepath.Join(dir, strings.TrimPrefix(m.MountPath, "/nats"), item.Path))
			}
		}
	}
}

func (c *cluster) kubectl(manifest string, args ...string) {
	c.t.Helper()
	run := exec.CommandContext(c.t.Context(), c.kubelab(), append([]string{"kubectl"}, args...)...)
	run.Env = append(os.Environ(), "KUBECONFIG="+labtest.Kubeconfig(c.t))
	run.Stdin = strings.NewReader(manifest)
	output, err := run.CombinedOutput()
	require.NoError(c.t, err, "%s\n%s", output, manifest)
}

func (c *cluster) kubelab() string {
	c.t.Helper()
	binary, err := lab.Binary(c.t.Context(), lab.Options{})
	require.NoError(c.t, err)
	return binary
}

var freeze = flag.Bool("freeze", false, "write the rendered release of this version to testdata, once it is released")

func TestFreeze(t *testing.T) { //nolint:paralleltest // writes what other tests read
	if !*freeze {
		return
	}
	loaded := load(t)
	r := render(t, loaded, "frozen", everything())
	documents := make([]string, 0, len(r.all))
	for _, key := range slices.Sorted(maps.Keys(r.all)) {
		documents = append(documents, strings.TrimSpace(r.all[key])+"\n")
	}
	path := filepath.Join("testdata", loaded.Metadata.Version+".yaml")
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(documents, "---\n")), 0o600))
}

// frozen is the release of an earlier chart, as helm rendered it for the namespace "here".
func (c *cluster) frozen(version string) *chart.Chart {
	c.t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", version+".yaml"))
	require.NoError(c.t, err)
	manifest := bytes.ReplaceAll(raw, []byte("namespace: here"), []byte("namespace: "+c.namespace))
	manifest = bytes.ReplaceAll(manifest, []byte(".here.svc"), []byte("."+c.namespace+".svc"))
	return &chart.Chart{
		Metadata:  &chart.Metadata{APIVersion: chart.APIVersionV2, Name: "lockstep", Version: version},
		Templates: []*common.File{{Name: "templates/all.yaml", Data: manifest}},
	}
}

func TestEarlierReleaseIsUpgraded(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		version := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, "chart-upgrade-"+strings.ReplaceAll(version, ".", "-"))
			c.install(c.frozen(version), nil)
			made := c.upgrade(load(t), everything())
			require.Equal(t, 2, made.Version)
			require.Contains(t, made.Manifest, releaseName+"-state")
			uninstall := action.NewUninstall(c.helm)
			uninstall.Timeout, uninstall.WaitStrategy = timeout, kube.StatusWatcherStrategy
			_, err := uninstall.Run(releaseName)
			require.NoError(t, err)
		})
	}
}

func TestAgentManifestIsAccepted(t *testing.T) {
	t.Parallel()
	agent := deploy.Agent{
		ID: 4711, Components: deploy.Components(), ImageRepository: "lockstep", ImageTag: "v7", NATSPorts: []string{"4222"},
		RelayPorts: []string{"443"}, RelayURLs: []string{"wss://relay.example"}, RelayCA: "PEM", Workloads: true,
		Credentials:     []byte(`{"token":"secret"}`),
		NamespacePrefix: "ws-",
	}
	manifest, err := agent.Render()
	require.NoError(t, err)
	c := newCluster(t, "agent-manifest")
	c.kubectl(manifest, "apply", "-f", "-")
	const namespace = "lockstep-agent-4711"
	for _, component := range deploy.Components() {
		// Pod security admits the pods: they start.
		require.Eventually(t, func() bool {
			d, err := c.client.AppsV1().Deployments(namespace).Get(t.Context(), "lockstep-"+component, metav1.GetOptions{})
			return err == nil && d.Status.ReadyReplicas == 2
		}, timeout, 50*time.Millisecond, component)
	}
	// Applied without credentials, as for an upgrade, the Secret stays.
	agent.Credentials = nil
	manifest, err = agent.Render()
	require.NoError(t, err)
	c.kubectl(manifest, "apply", "-f", "-")
	secret, err := c.client.CoreV1().Secrets(namespace).Get(t.Context(), "agent-credentials", metav1.GetOptions{})
	require.NoError(t, err)
	var credentials map[string]string
	require.NoError(t, yaml.Unmarshal(secret.Data["credentials.json"], &credentials))
	require.Equal(t, "secret", credentials["token"])
}
