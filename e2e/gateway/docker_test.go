package gateway_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// dockerVariable enables the tests with containers.
const dockerVariable = "LOCKSTEP_DOCKER"

// docker runs the containers of pods with a Docker engine of this machine. It pulls nothing: its images are built from
// scratch.
type docker struct {
	*testing.T

	folder string // of volumes and build contexts
	label  string // of everything that it makes
}

// newDocker skips the test unless it was asked for.
func newDocker(t *testing.T) *docker {
	t.Helper()
	if os.Getenv(dockerVariable) == "" {
		t.Skip("not shown: no containers; set " + dockerVariable + "=1 where root reaches a Docker engine of this machine " +
			"and /bin/busybox is static (Debian: docker.io, busybox-static)")
	}
	require.Zero(t, os.Getuid(), "volumes get the group of the workspace: only root may do that")
	d := &docker{T: t, folder: t.TempDir(), label: "lockstep-e2e-" + strings.ToLower(rand.Text())}
	require.NoError(t, os.Chmod(d.folder, 0o755))
	d.run("version")
	t.Cleanup(func() {
		for id := range strings.FieldsSeq(d.run("ps", "--all", "--quiet", "--filter", "label="+d.label)) {
			d.run("rm", "--force", id)
		}
		for id := range strings.FieldsSeq(d.run("images", "--quiet", "--filter", "label="+d.label)) {
			d.run("rmi", "--force", id)
		}
	})
	return d
}

// try runs a command of Docker to its end.
func (d *docker) try(arguments ...string) (string, error) {
	d.Helper()
	var stdout, stderr bytes.Buffer
	command := exec.Command("docker", arguments...)
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return stdout.String(), fmt.Errorf("docker %s: %w: %s", arguments[0], err, stderr.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}

func (d *docker) run(arguments ...string) string {
	d.Helper()
	output, err := d.try(arguments...)
	require.NoError(d, err, "%s", output)
	return output
}

func (d *docker) build(name, file, folder string, arguments ...string) (image string) {
	d.Helper()
	image = d.label + "/" + name + ":1"
	d.run(append([]string{"build", "--quiet", "--file", file, "--label", d.label, "--tag", image},
		append(arguments, folder)...)...)
	return image
}

// agentImage builds the image of the workspace agent as `make images` does. It also returns the program.
func (d *docker) agentImage() (image, program string) {
	d.Helper()
	folder := filepath.Join(d.folder, "agent-image")
	require.NoError(d, os.MkdirAll(filepath.Join(folder, "data"), 0o755))
	program = filepath.Join(folder, "workspace-agent")
	build := exec.Command("go", "build", "-trimpath", "-o", program,
		"lockstep.internal/services/gateway/cmd/workspace-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := build.CombinedOutput()
	require.NoError(d, err, "%s", output)
	dockerfile := filepath.Join("..", "..", "deploy", "Dockerfile")
	return d.build("workspace-agent", dockerfile, folder, "--build-arg", "PROGRAM=workspace-agent"), program
}

// busyboxImage builds an image with nothing but busybox: no accounts, no folder for temporary files. PATH and the
// profile are as in the images of programming languages.
func (d *docker) busyboxImage() (image string) {
	d.Helper()
	const busybox = "/bin/busybox"
	folder := filepath.Join(d.folder, "busybox-image")
	for _, name := range []string{"bin", "etc", "opt/language/bin"} {
		require.NoError(d, os.MkdirAll(filepath.Join(folder, name), 0o755))
	}
	program, err := os.ReadFile(busybox)
	require.NoError(d, err)
	write := func(name, content string, mode os.FileMode) {
		require.NoError(d, os.WriteFile(filepath.Join(folder, name), []byte(content), mode))
	}
	write("bin/busybox", string(program), 0o755)
	write("etc/profile", "PATH=/usr/local/bin:/usr/bin:/bin\nexport PATH\n", 0o644)
	write("opt/language/bin/compile", "#!/bin/sh\necho compiled\n", 0o755)
	write("Dockerfile",
		"FROM scratch\nCOPY bin /bin\nCOPY etc /etc\nCOPY opt /opt\nENV PATH=/opt/language/bin:/bin\n", 0o644)
	applets, err := exec.Command(busybox, "--list").Output()
	require.NoError(d, err)
	for applet := range strings.FieldsSeq(string(applets)) {
		if applet != "busybox" {
			require.NoError(d, os.Symlink("busybox", filepath.Join(folder, "bin", applet)))
		}
	}
	return d.build("busybox", filepath.Join(folder, "Dockerfile"), folder)
}

// hostAddress is where containers reach this machine. The image has busybox.
func (d *docker) hostAddress(image string) string {
	d.Helper()
	route := strings.Fields(d.run("run", "--rm", "--label", d.label, image, "ip", "-4", "route", "show", "default"))
	require.Greater(d, len(route), 2, "%s", route) // default via ADDRESS
	require.NotNil(d, net.ParseIP(route[2]), "%s", route)
	return route[2]
}

// pod is a pod whose containers Docker runs, one after the other, and the last of them on.
type pod struct {
	*docker

	spec    corev1.PodSpec
	configs map[string]corev1.ConfigMap
	claims  string            // folder of persistent volumes
	volumes map[string]string // folders by names of volumes
	running string            // id of the container
}

// newPod makes the volumes of a pod as kubelets do: a volume belongs to the group of the pod.
func (d *docker) newPod(spec corev1.PodSpec, configs map[string]corev1.ConfigMap, claims string) *pod {
	d.Helper()
	p := &pod{docker: d, spec: spec, configs: configs, claims: claims, volumes: map[string]string{}}
	group := int(*spec.SecurityContext.FSGroup)
	shared := func(folder string, mode os.FileMode) {
		require.NoError(d, os.MkdirAll(folder, 0o700))
		require.NoError(d, os.Chown(folder, 0, group))
		require.NoError(d, os.Chmod(folder, mode|os.ModeSetgid))
	}
	own, err := os.MkdirTemp(d.folder, "pod-")
	require.NoError(d, err)
	require.NoError(d, os.Chmod(own, 0o755))
	for _, v := range spec.Volumes {
		folder := filepath.Join(own, v.Name)
		switch {
		case v.EmptyDir != nil:
			shared(folder, 0o777)
		case v.PersistentVolumeClaim != nil:
			folder = filepath.Join(claims, v.PersistentVolumeClaim.ClaimName)
			shared(folder, 0o775)
		case v.ConfigMap != nil:
			require.NoError(d, os.Mkdir(folder, 0o755))
			for name, content := range configs[v.ConfigMap.Name].Data {
				require.NoError(d, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644))
			}
		default:
			require.FailNow(d, "a volume that the test does not make", v.Name)
		}
		p.volumes[v.Name] = folder
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, m := range c.VolumeMounts {
			folder := p.volumes[m.Name]
			for part := range strings.SplitSeq(m.SubPath, "/") {
				if folder = filepath.Join(folder, part); part != "" {
					shared(folder, 0o775)
				}
			}
		}
	}
	return p
}

// arguments are those of `docker run` for a container. message is the file with the reason of its end.
func (p *pod) arguments(c *corev1.Container) (arguments []string, message string) {
	p.Helper()
	file, err := os.CreateTemp(p.folder, "termination-log-")
	require.NoError(p, err)
	require.NoError(p, file.Chmod(0o666))
	require.NoError(p, file.Close())
	arguments, err = dockerRun(&p.spec, c, p.volumes, file.Name())
	require.NoError(p, err)
	return append([]string{"run", "--label", p.label}, arguments...), file.Name()
}

// runToEnd runs a container, such as an init container, and returns its log, exit code, and the reason of its end.
func (p *pod) runToEnd(c *corev1.Container) (log string, code int, reason string) {
	p.Helper()
	arguments, message := p.arguments(c)
	id := p.run(slices.Insert(arguments, 1, "--detach")...)
	code, err := strconv.Atoi(p.run("wait", id))
	require.NoError(p, err)
	output, err := exec.Command("docker", "logs", id).CombinedOutput()
	require.NoError(p, err)
	p.run("rm", id)
	text, err := os.ReadFile(message)
	require.NoError(p, err)
	return string(output), code, string(text)
}

// initialize runs all init containers and returns their logs.
func (p *pod) initialize() (logs string) {
	p.Helper()
	for i := range p.spec.InitContainers {
		log, code, reason := p.runToEnd(&p.spec.InitContainers[i])
		require.Zero(p, code, "%s: %s: %s", p.spec.InitContainers[i].Name, reason, log)
		logs += log
	}
	return logs
}

// start starts the first container and returns its address.
func (p *pod) start() (address string) {
	p.Helper()
	arguments, _ := p.arguments(&p.spec.Containers[0])
	p.running = p.run(slices.Insert(arguments, 1, "--detach")...)
	address = p.run("inspect", "--format", "{{.NetworkSettings.IPAddress}}", p.running)
	require.NotNil(p, net.ParseIP(address), address)
	return address
}

// end waits until the container has ended, and returns its exit code.
func (p *pod) end() string {
	p.Helper()
	code := p.run("wait", p.running)
	p.run("rm", p.running)
	return code
}

// dockerRun translates a container of a pod: image, command, variables, mounts, user and groups, privileges,
// capabilities, the root file system, limits and the grace period. Docker's defaults are what it has of the rest:
// seccomp's default profile, and a network of its own. It returns an error for everything that it does not know.
func dockerRun(
	spec *corev1.PodSpec, c *corev1.Container, volumes map[string]string, terminationLog string,
) ([]string, error) {
	if left := untranslated(*c); !reflect.DeepEqual(left, corev1.Container{}) {
		return nil, fmt.Errorf("container %s has %+v", c.Name, left)
	}
	security, own := spec.SecurityContext, c.SecurityContext
	known := &corev1.PodSecurityContext{
		RunAsNonRoot: security.RunAsNonRoot, RunAsUser: security.RunAsUser, RunAsGroup: security.RunAsGroup,
		FSGroup: security.FSGroup, FSGroupChangePolicy: security.FSGroupChangePolicy,
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if !reflect.DeepEqual(security, known) || *security.RunAsUser == 0 {
		return nil, fmt.Errorf("the security context of the pod is %+v", security)
	}
	arguments := []string{
		"--user", fmt.Sprintf("%d:%d", *security.RunAsUser, *security.RunAsGroup),
		"--group-add", strconv.FormatInt(*security.FSGroup, 10),
		"--stop-timeout", strconv.FormatInt(*spec.TerminationGracePeriodSeconds, 10),
		"--memory", strconv.FormatInt(c.Resources.Limits.Memory().Value(), 10),
		"--cpus", strconv.FormatFloat(c.Resources.Limits.Cpu().AsApproximateFloat64(), 'f', 3, 64),
		"--mount", "type=bind,source=" + terminationLog + ",target=" + c.TerminationMessagePath,
	}
	if own.AllowPrivilegeEscalation != nil && !*own.AllowPrivilegeEscalation {
		arguments = append(arguments, "--security-opt", "no-new-privileges")
	}
	if own.ReadOnlyRootFilesystem != nil && *own.ReadOnlyRootFilesystem {
		arguments = append(arguments, "--read-only")
	}
	for _, capability := range own.Capabilities.Drop {
		arguments = append(arguments, "--cap-drop", string(capability))
	}
	for _, m := range c.VolumeMounts {
		mount := "type=bind,source=" + filepath.Join(volumes[m.Name], m.SubPath) + ",target=" + m.MountPath
		if m.ReadOnly {
			mount += ",readonly"
		}
		arguments = append(arguments, "--mount", mount)
	}
	for _, variable := range c.Env {
		if variable.ValueFrom != nil {
			return nil, fmt.Errorf("variable %s has no plain value", variable.Name)
		}
		arguments = append(arguments, "--env", variable.Name+"="+expanded(variable.Value))
	}
	words := slices.Clone(c.Args)
	if len(c.Command) > 0 {
		arguments = append(arguments, "--entrypoint", expanded(c.Command[0]))
		words = slices.Concat(c.Command[1:], words)
	}
	arguments = append(arguments, c.Image)
	for _, word := range words {
		arguments = append(arguments, expanded(word))
	}
	return arguments, nil
}

// expanded is a text as Kubernetes expands it. The state service escapes each $, so there is no variable in it.
func expanded(text string) string { return strings.ReplaceAll(text, "$$", "$") }

// untranslated returns what dockerRun does not translate of a container.
func untranslated(c corev1.Container) corev1.Container {
	c.Name, c.Image, c.Command, c.Args, c.Env, c.VolumeMounts = "", "", nil, nil, nil, nil
	c.Ports = nil // all ports of a container can be reached
	c.Resources = corev1.ResourceRequirements{}
	c.TerminationMessagePath, c.TerminationMessagePolicy, c.ImagePullPolicy = "", "", ""
	if s := c.SecurityContext; s != nil && s.Capabilities != nil && reflect.DeepEqual(s, &corev1.SecurityContext{
		AllowPrivilegeEscalation: s.AllowPrivilegeEscalation, ReadOnlyRootFilesystem: s.ReadOnlyRootFilesystem,
		Capabilities: &corev1.Capabilities{Drop: s.Capabilities.Drop},
	}) {
		c.SecurityContext = nil
	}
	return c
}
