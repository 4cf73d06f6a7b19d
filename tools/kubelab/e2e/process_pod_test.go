package e2e_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const agentAnnotation = "lockstep.dev/workspace-agent"

// workspaceLab is a lab that runs workspace agents.
type workspaceLab struct {
	*process

	cluster   cluster
	authority ssh.Signer
	dns       *net.Resolver
}

func startWorkspaceLab(t *testing.T, args ...string) workspaceLab {
	t.Helper()
	agent := filepath.Join(temporary, "workspace-agent")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", agent, "./services/gateway/cmd/workspace-agent")
	build.Dir = "../../.."
	build.Env = append(os.Environ(), "GOWORK=")
	output, err := build.CombinedOutput()
	require.NoError(t, err, "%s", output)
	p := start(t, append([]string{"--nodes=1", "--workspace-agent=" + agent}, args...)...)
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	authority, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	return workspaceLab{process: p, cluster: namespaceIn(t, p.client(t), nil), authority: authority, dns: &net.Resolver{
		PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "udp", p.info.DNS)
		},
	}}
}

// deployWorkspace creates what a workspace consists of, with a pod as the state service renders it.
func (l workspaceLab) deployWorkspace(t *testing.T, name, project string) {
	t.Helper()
	ctx, c := t.Context(), l.cluster
	config := map[string]any{"workspace": "id-of-hello", "home": "/workspace", "authorities": l.authorities()}
	if project != "" {
		config["projects"] = []map[string]string{{"name": "project", "url": project}}
	}
	content, err := json.Marshal(config)
	require.NoError(t, err)
	_, err = c.CoreV1().ConfigMaps(c.namespace).Create(ctx, &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-agent"}, Data: map[string]string{"workspace.json": string(content)},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.CoreV1().Secrets(c.namespace).Create(ctx, &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"TOKEN": "s3cret"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.CoreV1().PersistentVolumeClaims(c.namespace).Create(ctx, &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-data"},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.CoreV1().Services(c.namespace).Create(ctx, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []v1.ServicePort{{Port: 60022}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	deploy(t, c, name, 1, workspacePod(name))
}

func workspacePod(name string) v1.PodTemplateSpec {
	data := v1.VolumeMount{Name: "data", MountPath: "/workspace"}
	tools := v1.VolumeMount{Name: "agent", MountPath: "/lockstep"}
	config := v1.VolumeMount{Name: "agent-config", MountPath: "/run/lockstep"}
	return v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{agentAnnotation: "workspace"}},
		Spec: v1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](5),
			InitContainers: []v1.Container{
				{
					Name: "lockstep-install", Image: "agent:1", Args: []string{"install", "/lockstep"},
					VolumeMounts: []v1.VolumeMount{tools},
				},
				{
					Name: "lockstep-clone", Image: "agent:1", Args: []string{"clone"},
					VolumeMounts: []v1.VolumeMount{data, config},
				},
			},
			Containers: []v1.Container{{
				Name: "workspace", Image: "ide:1",
				// The lab must not run the command beside the agent.
				Command:      []string{"/lockstep/workspace-agent", "run", "--", "sh", "-c", "touch /workspace-command-ran"},
				VolumeMounts: []v1.VolumeMount{data, config, tools},
				Ports:        []v1.ContainerPort{{Name: "lockstep-ssh", ContainerPort: 60022}},
				Env: []v1.EnvVar{
					{Name: "GREETING", Value: "hello"},
					{Name: "LONG_GREETING", Value: "$(GREETING), $$(GREETING)"},
					{Name: "TOKEN", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{
						LocalObjectReference: v1.LocalObjectReference{Name: name}, Key: "TOKEN",
					}}},
				},
			}},
			Volumes: []v1.Volume{
				{Name: "data", VolumeSource: v1.VolumeSource{
					PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name + "-data"},
				}},
				{Name: "agent", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
				{Name: "agent-config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
					LocalObjectReference: v1.LocalObjectReference{Name: name + "-agent"},
				}}},
			},
		},
	}
}

func (l workspaceLab) authorities() []string {
	return []string{string(ssh.MarshalAuthorizedKey(l.authority.PublicKey()))}
}

// connect opens an SSH connection to the workspace hello by the name of its Service.
func (l workspaceLab) connect(t *testing.T) *ssh.Client {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	certificate := &ssh.Certificate{
		Key: signer.PublicKey(), CertType: ssh.UserCert, KeyId: "ada", ValidPrincipals: []string{"id-of-hello"},
		ValidAfter: uint64(time.Now().Add(-time.Minute).Unix()), ValidBefore: uint64(time.Now().Add(time.Minute).Unix()),
		Permissions: ssh.Permissions{Extensions: map[string]string{"permit-pty": "", "permit-port-forwarding": ""}},
	}
	require.NoError(t, certificate.SignCert(rand.Reader, l.authority))
	certified, err := ssh.NewCertSigner(certificate, signer)
	require.NoError(t, err)
	dialer := &net.Dialer{Resolver: l.dns}
	address := net.JoinHostPort("hello."+l.cluster.namespace+".svc", "60022")
	raw, err := dialer.DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	conn, channels, requests, err := ssh.NewClientConn(raw, address, &ssh.ClientConfig{
		User: "id-of-hello", Auth: []ssh.AuthMethod{ssh.PublicKeys(certified)},
		HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	require.NoError(t, err)
	client := ssh.NewClient(conn, channels, requests)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func run(t *testing.T, client *ssh.Client, command string) string {
	t.Helper()
	session, err := client.NewSession()
	require.NoError(t, err)
	defer func() { _ = session.Close() }()
	output, err := session.CombinedOutput(command)
	require.NoError(t, err, "%s", output)
	return strings.TrimSpace(string(output))
}

func alive(pid string) bool {
	state, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	return err == nil && !strings.Contains(string(state), ") Z ")
}

func TestAgentOfAWorkspaceRunsAsAProcess(t *testing.T) {
	t.Parallel()
	l := startWorkspaceLab(t)
	c := l.cluster
	l.deployWorkspace(t, "hello", "")
	awaitAvailable(t, c, "hello", 1)
	pod := podsOf(t, c, "hello")[0]
	require.True(t, strings.HasPrefix(pod.Status.PodIP, "10."), pod.Status.PodIP)
	for _, s := range pod.Status.InitContainerStatuses {
		require.Zero(t, s.State.Terminated.ExitCode, s.Name)
		require.Equal(t, "Completed", s.State.Terminated.Reason)
	}
	client := l.connect(t)
	require.Equal(t, "hello hello, $(GREETING) s3cret",
		run(t, client, `echo "$GREETING $LONG_GREETING $TOKEN"`), "the environment is that of the pod")
	require.NoFileExists(t, "/workspace-command-ran")
	home := run(t, client, "pwd")
	require.True(t, strings.HasPrefix(home, l.info.Data), home)
	run(t, client, "echo work > file")

	reader := onPod{cluster: c, kubeconfig: l.info.Kubeconfig, name: pod.Name}
	logs, err := reader.kubectl(t, webSockets, "logs", pod.Name, "--container=workspace").Output()
	require.NoError(t, err)
	require.Contains(t, string(logs), "serving SSH")

	// A process that has left its group and its terminal ends with the pod, too; the volume stays.
	left := run(t, client, "setsid sleep 1000 >/dev/null 2>&1 & echo $!")
	require.True(t, alive(left))
	scale(t, c, "hello", 0)
	eventually(t, "the pod is gone", func(context.Context) bool { return len(podsOf(t, c, "hello")) == 0 })
	require.False(t, alive(left), "its processes are gone")
	_, err = l.dns.LookupHost(t.Context(), "hello."+c.namespace+".svc")
	require.ErrorContains(t, err, "no such host")
	scale(t, c, "hello", 1)
	awaitAvailable(t, c, "hello", 1)
	require.Equal(t, "work", run(t, l.connect(t), "cat file"))

	// Its end is reported, and it is started again.
	agent := run(t, l.connect(t), "echo $PPID")
	require.NoError(t, exec.CommandContext(t.Context(), "kill", "-9", agent).Run())
	eventually(t, "the agent is started again", func(context.Context) bool {
		s := podsOf(t, c, "hello")[0].Status.ContainerStatuses
		return len(s) == 1 && s[0].RestartCount == 1 && s[0].Ready && s[0].LastTerminationState.Terminated.ExitCode == 137
	})
	run(t, l.connect(t), "true")

	// New authorities count without a restart.
	other := l
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	other.authority, err = ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	config, err := c.CoreV1().ConfigMaps(c.namespace).Get(t.Context(), "hello-agent", metav1.GetOptions{})
	require.NoError(t, err)
	config.Data["workspace.json"] = fmt.Sprintf(`{"workspace":"id-of-hello","home":"/workspace","authorities":[%q]}`,
		strings.TrimSpace(other.authorities()[0]))
	_, err = c.CoreV1().ConfigMaps(c.namespace).Update(t.Context(), config, metav1.UpdateOptions{})
	require.NoError(t, err)
	volumes := filepath.Dir(home)
	eventually(t, "the agent reads the new configuration", func(context.Context) bool {
		written, _ := filepath.Glob(filepath.Join(filepath.Dir(l.info.Data), "pods", "*", "volumes", "agent-config", "*"))
		if len(written) != 1 {
			return false
		}
		content, err := os.ReadFile(written[0])
		return err == nil && string(content) == config.Data["workspace.json"]
	})
	run(t, other.connect(t), "true")

	require.NoError(t, c.CoreV1().Namespaces().Delete(t.Context(), c.namespace, metav1.DeleteOptions{}))
	eventually(t, "the volume is removed with its claim", func(context.Context) bool {
		entries, err := os.ReadDir(volumes)
		return err == nil && len(entries) == 0
	})
}

func TestFailedCloneIsTheMessageOfItsContainer(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	l := startWorkspaceLab(t)
	l.deployWorkspace(t, "hello", server.URL+"/missing.git")
	eventually(t, "the clone has failed twice", func(context.Context) bool {
		for _, pod := range podsOf(t, l.cluster, "hello") {
			for _, s := range pod.Status.InitContainerStatuses {
				if s.Name != "lockstep-clone" || s.RestartCount < 2 || s.State.Waiting == nil {
					continue
				}
				require.Equal(t, "CrashLoopBackOff", s.State.Waiting.Reason)
				ended := s.LastTerminationState.Terminated
				require.Equal(t, int32(1), ended.ExitCode)
				require.Contains(t, ended.Message, "there is no such repository")
				require.Equal(t, v1.PodPending, pod.Status.Phase)
				return true
			}
		}
		return false
	})
}

func TestProcessesEndWithTheLab(t *testing.T) {
	t.Parallel()
	for name, signal := range map[string]syscall.Signal{"stopped": syscall.SIGTERM, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := startWorkspaceLab(t)
			l.deployWorkspace(t, "hello", "")
			awaitAvailable(t, l.cluster, "hello", 1)
			agent := run(t, l.connect(t), "echo $PPID")
			require.True(t, alive(agent))
			_ = l.stop(signal)
			eventually(t, "the agent has ended", func(context.Context) bool { return !alive(agent) })
		})
	}
}
