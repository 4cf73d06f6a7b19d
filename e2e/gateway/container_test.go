package gateway_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/workspaceagent"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/gateway"
	"lockstep.internal/services/gateway/address"
	"lockstep.internal/services/state"
	"lockstep.internal/tools/stack"
)

// contained is the workspace of TestWorkspaceInAContainer.
const contained = "contained"

// containedDevfile has the image and the address of the Git server as its values. The command ends with the status in
// the file /workspace/exit, or writes the file /workspace/ended when it is asked to end.
const containedDevfile = `schemaVersion: 2.2.0
metadata: {name: contained}
components:
- name: tools
  container:
    image: %s
    command: [/bin/sh, -c]
    args:
    - |
      httpd -p 8080 -h /workspace/hello
      trap 'echo ended > /workspace/ended; exit 0' TERM
      until [ -e /workspace/exit ]; do sleep 0.1 & wait $!; done
      exit "$(cat /workspace/exit)"
    memoryLimit: 256Mi
    cpuLimit: 750m
    env: [{name: PRICE, value: "$5"}]
    endpoints: [{name: web, targetPort: 8080}]
    volumeMounts: [{name: cache, path: /cache}]
- name: cache
  volume: {size: 1Gi}
projects:
- name: hello
  git: {remotes: {origin: "%s"}}
commands:
- id: greet
  exec: {component: tools, commandLine: 'echo "$PRICE" > "$PROJECTS_ROOT/greeted"'}
events: {postStart: [greet]}
`

// TestWorkspaceInAContainer enters a workspace in a container of the Docker engine: what the state service renders for
// an image that has busybox and nothing else. The cluster is kubelab's, which says that the pod runs; the gateway
// reaches the container. Run it with
//
//	LOCKSTEP_DOCKER=1 go test ./e2e/gateway -run 'Container|Docker' -v
func TestWorkspaceInAContainer(t *testing.T) {
	d := newDocker(t)
	agentImage, program := d.agentImage()
	image := d.busyboxImage()
	project := d.serveProject(d.hostAddress(image))
	var services services
	s := fixture.StartWith(t, stack.Options{
		Gateway: true, WorkspaceAgent: program,
		Configure: func(_ string, config any) {
			switch c := config.(type) {
			case *gateway.Config:
				c.Workspaces.DialContext = services.dial
			case *state.Config:
				c.Workspace.AgentImage = agentImage
			}
		},
	})
	owner := newPerson(t, s, "ada")
	owner.cli.WithInput(fmt.Sprintf(containedDevfile, image, project.url)).
		OK("ws", "create", "--devfile", "-", "--wait")
	made := fixture.ParseOutput(t, owner.cli.OK("ws", "get", contained, "-o", "json"), &statev1.GetWorkspaceResponse{})
	w := s.WorkspaceOf(made.GetWorkspace())
	spec, configs := rendered(t, s, w)
	claims := filepath.Join(d.folder, "claims")
	service := contained + "." + w.Namespace + ".svc"

	first := d.newPod(spec, configs, claims)
	require.Contains(t, first.initialize(), `"project cloned"`)
	require.EqualValues(t, 1, project.clones.Load())
	services.set(service, first.start())
	owner.writeConfig(contained)
	enterContainer(t, owner)
	owner.awaitSSH(contained, "cat greeted; touch /cache/used && echo $PRICE", "$5\n$5\n")
	require.Equal(t, "work\n", owner.inContainer("echo work > hello/work; cat hello/work"))
	hostKey := filepath.Join(claims, spec.Volumes[0].PersistentVolumeClaim.ClaimName, workspaceagent.StateFolder,
		"ssh_host_ed25519_key")
	key, err := os.ReadFile(hostKey)
	require.NoError(t, err)

	// It is killed. The next one has a read-only root, which the cluster may require.
	d.run("kill", "--signal", "KILL", first.running)
	require.Equal(t, "137", first.end())
	spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem = new(true)
	second := d.newPod(spec, configs, claims)
	require.Contains(t, second.initialize(), `"project kept"`)
	require.EqualValues(t, 1, project.clones.Load(), "the project is not cloned again")
	services.set(service, second.start())
	enterContainer(t, owner) // the gateway knows the host key
	require.Equal(t, "work\n", owner.inContainer("cat hello/work"))
	same, err := os.ReadFile(hostKey)
	require.NoError(t, err)
	require.Equal(t, key, same)

	// It is asked to end, while somebody works in it, and a program runs in the background.
	owner.inContainer(`setsid sh -c 'trap "echo ended > background; exit" TERM; touch traps; while :; do sleep 0.1; done' \
		< /dev/null > /dev/null 2>&1 & until [ -e traps ]; do sleep 0.1; done`)
	working := fixture.StartProcess(t,
		owner.command(t.Context(), "ssh", contained+".lockstep", "echo working; sleep 1000"))
	working.AwaitLine("working")
	d.run("stop", second.running)
	require.Equal(t, "0", second.end())
	require.Error(t, working.Wait())
	for _, file := range []string{"ended", "background"} {
		require.FileExists(t, filepath.Join(filepath.Dir(filepath.Dir(hostKey)), file), "the program has got SIGTERM")
	}

	// The container ends with the status of its command.
	third := d.newPod(spec, configs, claims)
	third.initialize()
	services.set(service, third.start())
	owner.awaitSSH(contained, "echo 7 > exit", "")
	require.Equal(t, "7", third.end())
	failing := spec.Containers[0].DeepCopy()
	failing.Command = []string{failing.Command[0], "run", "--", "/bin/no-such-program"}
	_, code, reason := third.runToEnd(failing)
	require.Equal(t, 127, code)
	require.Contains(t, reason, "/bin/no-such-program")
}

// enterContainer does what people do, in a container that lacks nearly everything.
func enterContainer(t *testing.T, p *person) {
	t.Helper()
	p.awaitSSH(contained, "ls hello/README.md", "hello/README.md\n")
	require.Regexp(t, `^uid=1000 gid=1000 groups=1000\n$`, p.inContainer("id"))
	require.Equal(t, "0000000000000000\n1\n",
		p.inContainer("awk '/^CapEff|^NoNewPrivs/ { print $2 }' /proc/self/status"))
	require.Equal(t, "268435456\n", p.inContainer(
		"cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || true"))
	require.Equal(t, "/workspace workspace\n", p.inContainer("echo $HOME $USER"))
	require.Equal(t, "written\n", p.inContainer(`file=$(mktemp) && echo written > "$file" && cat "$file" && rm "$file"`))
	require.Equal(t, "compiled\n", p.inContainer("compile"))
	code, _, _ := p.cli.Run("ws", "ssh", contained, "--", "exit 3")
	require.Equal(t, 3, code)

	output, err := p.openSSHWith(strings.NewReader("tty\ncompile\nexit 5\n"), "ssh", "-tt", contained+".lockstep")
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, output)
	require.Equal(t, 5, exit.ExitCode(), output)
	require.Contains(t, output, "/dev/pts/", "a shell in a terminal")
	require.Contains(t, output, "compiled\r\n", "the profile has not removed a folder from PATH")

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("content"), 0o600))
	output, err = p.openSSH("scp", file, contained+".lockstep:copied")
	require.NoError(t, err, output)
	output, err = p.openSSH("scp", contained+".lockstep:copied", file+".back")
	require.NoError(t, err, output)
	back, err := os.ReadFile(file + ".back")
	require.NoError(t, err)
	require.Equal(t, "content", string(back))

	// A process without a parent ends: the first process of the container collects it.
	p.inContainer("(sleep 0.1 &)")
	require.Eventually(t, func() bool {
		return p.inContainer("ps -o stat,comm | grep -c -e ^Z -e '[s]leep 0.1' || true") == "0\n"
	}, fixture.Timeout, fixture.PollInterval)

	b := p.signIn(contained)
	status, body := b.get(p.system.WorkspaceURL(contained, webPort) + "/README.md")
	require.Equal(t, http.StatusOK, status, body)
	require.Equal(t, "# Hello\n", body, "busybox httpd")
	requireTerminal(t, p, b)
}

// inContainer runs a command that must succeed and returns its output.
func (p *person) inContainer(command string) string {
	p.t.Helper()
	output, err := p.openSSH("ssh", contained+".lockstep", command)
	require.NoError(p.t, err, "%s: %s", command, output)
	return output
}

// requireTerminal opens the terminal in the browser and runs a command.
func requireTerminal(t *testing.T, p *person, b *browser) {
	t.Helper()
	host := p.system.WorkspaceURL(contained, address.TerminalPort)
	status, page := b.get(host + "/.lockstep/terminal") // takes the session over to this host
	require.Equal(t, http.StatusOK, status, page)
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Timeout)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, strings.Replace(host, "https:", "wss:", 1)+"/.lockstep/terminal/socket",
		&websocket.DialOptions{HTTPClient: b.client, HTTPHeader: http.Header{"Origin": {host}}})
	require.NoError(t, err)
	defer conn.CloseNow()
	require.NoError(t, conn.Write(ctx, websocket.MessageBinary, []byte("echo $((6*7))\n")))
	var shown strings.Builder
	for !strings.Contains(shown.String(), "\n42\r") {
		_, data, err := conn.Read(ctx)
		require.NoError(t, err, shown.String())
		shown.Write(data)
	}
}

// rendered returns the pod of a workspace and its ConfigMaps as the cluster has them.
func rendered(t *testing.T, s *fixture.System, w *fixture.Workspace) (corev1.PodSpec, map[string]corev1.ConfigMap) {
	t.Helper()
	deployment, err := s.Kube.AppsV1().Deployments(w.Namespace).Get(t.Context(), w.Name, metav1.GetOptions{})
	require.NoError(t, err)
	list, err := s.Kube.CoreV1().ConfigMaps(w.Namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	configs := map[string]corev1.ConfigMap{}
	for _, c := range list.Items {
		configs[c.Name] = c
	}
	return deployment.Spec.Template.Spec, configs
}

// services stand for the DNS server and the Services of a cluster. The zero value has none.
type services struct {
	mu        sync.Mutex
	addresses map[string]string
}

func (s *services) set(name, address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addresses == nil {
		s.addresses = map[string]string{}
	}
	s.addresses[name] = address
}

func (s *services) dial(ctx context.Context, network, hostPort string) (net.Conn, error) {
	name, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	to := s.addresses[name]
	s.mu.Unlock()
	return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(to, port))
}

// gitProject is a project on a Git server that containers reach at the address of this machine.
type gitProject struct {
	url    string
	clones atomic.Int64 // by containers
}

func (d *docker) serveProject(host string) *gitProject {
	d.Helper()
	folder := filepath.Join(d.folder, "repositories")
	project := filepath.Join(folder, "hello")
	require.NoError(d, os.MkdirAll(project, 0o700))
	require.NoError(d, os.WriteFile(filepath.Join(project, "README.md"), []byte("# Hello\n"), 0o600))
	for _, arguments := range [][]string{{"init", "--quiet"}, {"add", "."}, {"commit", "--quiet", "-m", "begin"}} {
		git := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com"}, arguments...)...)
		git.Dir = project
		git.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		output, err := git.CombinedOutput()
		require.NoError(d, err, "%s", output)
	}
	programs, err := exec.Command("git", "--exec-path").Output()
	require.NoError(d, err)
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(programs)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + folder, "GIT_HTTP_EXPORT_ALL=1"},
	}
	own := map[string]bool{} // addresses of this machine
	addresses, err := net.InterfaceAddrs()
	require.NoError(d, err)
	for _, address := range addresses {
		if network, is := address.(*net.IPNet); is {
			own[network.IP.String()] = true
		}
	}
	p := &gitProject{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The agent of kubelab, which runs on this machine, clones the project, too.
		from, _, _ := net.SplitHostPort(r.RemoteAddr)
		if !own[from] && strings.HasSuffix(r.URL.Path, "/git-upload-pack") {
			p.clones.Add(1)
		}
		backend.ServeHTTP(w, r)
	}))
	require.NoError(d, server.Listener.Close())
	var listening net.ListenConfig
	server.Listener, err = listening.Listen(d.Context(), "tcp", net.JoinHostPort(host, "0"))
	require.NoError(d, err)
	server.Start()
	d.Cleanup(server.Close)
	p.url = server.URL + "/hello/.git"
	return p
}

// TestPodsAreTranslatedForDocker needs no Docker.
func TestPodsAreTranslatedForDocker(t *testing.T) {
	spec := corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(30)),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(1000)), RunAsGroup: new(int64(1001)), FSGroup: new(int64(1002)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	container := corev1.Container{
		Name: "main", Image: "image", Command: []string{"/agent", "run"}, Args: []string{"--", "$$5"},
		Env: []corev1.EnvVar{{Name: "A", Value: "$$b"}},
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("1Ki"),
		}},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "data", MountPath: "/workspace"},
			{Name: "data", MountPath: "/cache", SubPath: "c"},
			{Name: "config", MountPath: "/run/lockstep", ReadOnly: true},
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		TerminationMessagePath: "/dev/termination-log",
	}
	arguments, err := dockerRun(&spec, &container, map[string]string{"data": "/d", "config": "/c"}, "/log")
	require.NoError(t, err)
	require.Equal(t, strings.Fields("--user 1000:1001 --group-add 1002 --stop-timeout 30 --memory 1024 --cpus 0.250 "+
		"--mount type=bind,source=/log,target=/dev/termination-log --security-opt no-new-privileges --read-only "+
		"--cap-drop ALL --mount type=bind,source=/d,target=/workspace --mount type=bind,source=/d/c,target=/cache "+
		"--mount type=bind,source=/c,target=/run/lockstep,readonly --env A=$b --entrypoint /agent image run -- $5"),
		arguments)

	for name, change := range map[string]func(*corev1.PodSpec, *corev1.Container){
		"a probe":         func(_ *corev1.PodSpec, c *corev1.Container) { c.ReadinessProbe = &corev1.Probe{} },
		"a folder":        func(_ *corev1.PodSpec, c *corev1.Container) { c.WorkingDir = "/" },
		"more privileges": func(_ *corev1.PodSpec, c *corev1.Container) { c.SecurityContext.Privileged = new(true) },
		"capabilities": func(_ *corev1.PodSpec, c *corev1.Container) {
			c.SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"}
		},
		"root":    func(s *corev1.PodSpec, _ *corev1.Container) { s.SecurityContext.RunAsUser = new(int64) },
		"sysctls": func(s *corev1.PodSpec, _ *corev1.Container) { s.SecurityContext.Sysctls = []corev1.Sysctl{{}} },
		"a secret": func(_ *corev1.PodSpec, c *corev1.Container) {
			c.Env[0].ValueFrom = &corev1.EnvVarSource{}
		},
	} {
		s, c := spec.DeepCopy(), container.DeepCopy()
		change(s, c)
		_, err := dockerRun(s, c, nil, "")
		require.Error(t, err, name+" is not left out")
	}
}
