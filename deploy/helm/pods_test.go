package helm_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"lockstep.internal/tools/testkit/pg"
	"lockstep.internal/tools/testkit/port"
	"lockstep.internal/tools/testkit/programs"
)

// build returns the folder of the command line and of the services of the control plane.
func build(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	packages := []string{"lockstep.internal/tools/lockstep"}
	for _, name := range []string{"state", "deploys", "relay"} {
		packages = append(packages, "lockstep.internal/services/"+name+"/cmd/"+name)
	}
	dir, err := programs.Build(ctx, "release", packages...)
	require.NoError(t, err)
	return dir
}

// pods runs the programs of pods on this machine. Their settings and files are those of the pods, but for hosts, ports,
// the password of the database, and the folder that the files are below.
type pods struct {
	t        *testing.T
	dir      string
	secrets  map[string]map[string][]byte
	all      []workload
	nats     []*server.Server
	database *pg.Server
	running  []*exec.Cmd
}

// newPods starts the NATS servers with empty streams.
func newPods(t *testing.T, c *cluster, manifest string, database *pg.Server) *pods {
	t.Helper()
	p := newJobs(t, c, manifest, database)
	p.startNATS(c.namespace)
	return p
}

// newJobs starts nothing.
func newJobs(t *testing.T, c *cluster, manifest string, database *pg.Server) *pods {
	t.Helper()
	objects := rendered{t: t, name: "installed", all: map[string]string{}}
	objects.add(strings.ReplaceAll(manifest, "namespace: "+c.namespace, "namespace: here"))
	return &pods{t: t, dir: t.TempDir(), secrets: c.secrets(), all: objects.workloads(), database: database}
}

// startNATS starts as many servers as there are routes, with the arguments of their pods.
func (p *pods) startNATS(namespace string) {
	p.t.Helper()
	var routes []*url.URL
	for {
		i := len(p.nats)
		options := p.natsOptions(i)
		if routes == nil {
			for range options.Routes {
				routes = append(routes, &url.URL{Scheme: "nats", Host: p.hold().Address()})
			}
		}
		require.Equal(p.t, fmt.Sprintf("nats://lockstep-nats-%d.lockstep-nats-internal.%s.svc:%d", i, namespace,
			options.Cluster.Port), options.Routes[i].String())
		address := p.hold()
		options.Host, options.Port, options.HTTPPort = "127.0.0.1", address.Number(), 0
		options.Cluster.Host, options.Routes = "127.0.0.1", routes
		var err error
		options.Cluster.Port, err = strconv.Atoi(routes[i].Port())
		require.NoError(p.t, err)
		options.StoreDir, options.NoSigs, options.DisableShortFirstPing = p.t.TempDir(), true, true
		started, err := server.NewServer(options)
		require.NoError(p.t, err)
		started.Start()
		p.t.Cleanup(started.WaitForShutdown)
		p.t.Cleanup(started.Shutdown)
		require.True(p.t, started.ReadyForConnections(timeout))
		p.nats = append(p.nats, started)
		if len(p.nats) == len(routes) {
			break
		}
	}
	require.Eventually(p.t, func() bool {
		return slices.ContainsFunc(p.nats, func(s *server.Server) bool {
			return s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) == len(p.nats)
		})
	}, timeout, 10*time.Millisecond)
}

// natsOptions are those of one server of the chart, with the hosts, ports and folders that it has there.
func (p *pods) natsOptions(ordinal int) *server.Options {
	p.t.Helper()
	w, root := p.workload("nats"), p.mount("nats")
	var args []string
	for _, arg := range w.template.Spec.Containers[0].Args {
		arg = strings.ReplaceAll(arg, "$(POD_NAME)", fmt.Sprintf("%s-%d", w.Name, ordinal))
		args = append(args, strings.Replace(arg, "=/", "="+root+"/", 1))
	}
	never := func() { p.t.Error("the server only printed its manual or version") }
	flags := flag.NewFlagSet("nats-server", flag.ContinueOnError)
	options, err := server.ConfigureOptions(flags, args, never, never, never)
	require.NoError(p.t, err)
	require.Equal(p.t, fmt.Sprintf("%s-%d", w.Name, ordinal), options.ServerName)
	require.True(p.t, options.Cluster.NoAdvertise)
	return options
}

// natsURL is that of all servers.
func (p *pods) natsURL() string {
	var all []string
	for _, s := range p.nats {
		all = append(all, s.ClientURL())
	}
	return strings.Join(all, ",")
}

// hold reserves a port until the test ends.
func (p *pods) hold() *port.Held {
	p.t.Helper()
	held, err := port.Hold()
	require.NoError(p.t, err)
	p.t.Cleanup(func() { require.NoError(p.t, held.Release()) })
	return held
}

func (p *pods) workload(component string) workload {
	p.t.Helper()
	i := slices.IndexFunc(p.all, func(w workload) bool { return w.Labels["app.kubernetes.io/component"] == component })
	require.GreaterOrEqual(p.t, i, 0, component)
	return p.all[i]
}

// mount writes the Secrets that a pod mounts, as the kubelet does, and returns the folder that stands for its root.
func (p *pods) mount(component string) string {
	p.t.Helper()
	pod := p.workload(component).template.Spec
	root := filepath.Join(p.dir, component)
	for _, m := range pod.Containers[0].VolumeMounts {
		i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 {
			continue // a claim
		}
		volume, dir := pod.Volumes[i], filepath.Join(root, m.MountPath)
		if volume.Secret != nil {
			p.write(dir, volume.Secret.SecretName, volume.Secret.Items)
		}
		if volume.Projected != nil {
			for _, source := range volume.Projected.Sources {
				p.write(dir, source.Secret.Name, source.Secret.Items)
			}
		}
	}
	return root
}

func (p *pods) write(dir, secret string, items []corev1.KeyToPath) {
	p.t.Helper()
	if items == nil {
		for key := range p.secrets[secret] {
			items = append(items, corev1.KeyToPath{Key: key, Path: key})
		}
	}
	for _, item := range items {
		value := p.secrets[secret][item.Key]
		require.NotEmpty(p.t, value, "%s of %s", item.Key, secret)
		if bytes.HasPrefix(value, []byte("postgres://")) {
			u, err := url.Parse(strings.TrimSpace(string(value)))
			require.NoError(p.t, err)
			u.Host = fmt.Sprintf("127.0.0.1:%d", p.database.Port())
			value = []byte(u.String())
		}
		path := filepath.Join(dir, item.Path)
		require.NoError(p.t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(p.t, os.WriteFile(path, value, 0o600))
	}
}

func passwordOf(t *testing.T, connection string) string {
	t.Helper()
	parsed, err := url.Parse(strings.TrimSpace(connection))
	require.NoError(t, err)
	password, _ := parsed.User.Password()
	return password
}

// createRoles runs the job of the release that creates the roles of services in PostgreSQL.
func (p *pods) createRoles() {
	p.t.Helper()
	root, pod := p.mount("roles"), p.workload("roles").template.Spec
	var args []string
	for _, arg := range pod.Containers[0].Args {
		switch flag, value, _ := strings.Cut(arg, "="); flag {
		case "--url":
			u, err := url.Parse(value)
			require.NoError(p.t, err)
			require.Equal(p.t, "lockstep", u.User.String())
			u.Host, u.User = fmt.Sprintf("127.0.0.1:%d", p.database.Port()), nil
			args = append(args, "--url="+u.String())
		case "--password-file":
			require.FileExists(p.t, root+value) // the database of the test has another one
		default:
			args = append(args, strings.Replace(arg, "=/", "="+root+"/", 1))
		}
	}
	command := exec.CommandContext(p.t.Context(), filepath.Join(build(p.t), "lockstep"), args...)
	command.Env = []string{"PGUSER=lockstep", "PGPASSWORD=" + passwordOf(p.t, p.database.URL())}
	output, err := command.CombinedOutput()
	require.NoError(p.t, err, string(output))
}

var anyAddress = regexp.MustCompile(`^:[0-9]+$`)

// environment returns the variables of a pod.
func (p *pods) environment(component, root string) map[string]string {
	p.t.Helper()
	w := p.workload(component)
	environment := map[string]string{}
	for _, e := range w.template.Spec.Containers[0].Env {
		value := strings.ReplaceAll(e.Value, "$(POD_NAME)", w.Name+"-0")
		switch {
		case e.ValueFrom != nil:
			require.Equal(p.t, "metadata.name", e.ValueFrom.FieldRef.FieldPath)
			value = w.Name + "-0"
		case strings.HasPrefix(value, "/"):
			value = root + value
		case strings.HasPrefix(value, "nats://"):
			value = p.natsURL()
		case anyAddress.MatchString(value):
			value = p.hold().Address()
		}
		environment[e.Name] = value
	}
	return environment
}

// start starts the program of a pod, waits until it is ready, and returns its variables.
func (p *pods) start(component string) map[string]string {
	p.t.Helper()
	environment := p.environment(component, p.mount(component))
	program := exec.CommandContext(p.t.Context(), filepath.Join(build(p.t), component))
	program.Stdout, program.Stderr = p.t.Output(), p.t.Output()
	program.Env = []string{} // and not that of the test
	for name, value := range environment {
		program.Env = append(program.Env, name+"="+value)
	}
	require.NoError(p.t, program.Start())
	p.t.Cleanup(func() { _, _ = program.Process.Kill(), program.Wait() })
	p.running = append(p.running, program)
	ready := "http://" + environment["LOCKSTEP_OPS_LISTEN"] + "/readyz"
	require.Eventually(p.t, func() bool {
		response, err := http.Get(ready)
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	}, time.Minute, 50*time.Millisecond, "%s is not ready", component)
	return environment
}

// stop stops the services, the last one first, and NATS.
func (p *pods) stop() {
	p.t.Helper()
	for _, program := range slices.Backward(p.running) {
		require.NoError(p.t, program.Process.Signal(syscall.SIGTERM))
		require.NoError(p.t, program.Wait(), program.Path)
	}
	for _, s := range p.nats {
		s.Shutdown()
		s.WaitForShutdown()
	}
}
