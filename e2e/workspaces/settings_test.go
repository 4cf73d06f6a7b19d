package workspaces_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/services/state"
)

// cellSettings sets each setting of the cell to another value than its default.
func cellSettings(c *state.WorkspaceConfig) {
	c.NamespacePrefix = "dev-"
	c.IngressPeers = append(c.IngressPeers, "monitoring:app=prometheus")
	c.DNSPeers = append(c.DNSPeers, "dns:app=unbound")
	c.PrivateRanges = append(c.PrivateRanges, "203.0.113.0/24")
	c.EgressAllowed = []string{"10.9.0.0/16"}
	c.ProgressDeadline = 9 * time.Minute
	c.ResourceQuota = true
	c.StorageClass = "cell-class"
	c.DefaultCPU, c.DefaultMemory, c.DefaultVolumeSize = "250m", "512Mi", "2Gi"
	c.MaxCPU, c.MaxMemory, c.MaxVolumeSize = "64", "256Gi", "1Ti"
}

// policyOf returns peers and networks of a workspace's network policy.
type policyOf struct{ ingress, dns, private, allowed []string }

func (p *policyOf) read(policy *networkingv1.NetworkPolicy) {
	peers := func(list []networkingv1.NetworkPolicyPeer) (names []string) {
		for _, peer := range list {
			if peer.PodSelector != nil {
				names = append(names, peer.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"]+" "+
					metav1.FormatLabelSelector(peer.PodSelector))
			}
		}
		return names
	}
	for _, rule := range policy.Spec.Ingress {
		p.ingress = append(p.ingress, peers(rule.From)...)
	}
	for i, rule := range policy.Spec.Egress {
		p.dns = append(p.dns, peers(rule.To)...)
		for _, peer := range rule.To {
			if peer.IPBlock == nil {
				continue
			}
			p.private = append(p.private, peer.IPBlock.Except...)
			if i > 1 {
				p.allowed = append(p.allowed, peer.IPBlock.CIDR)
			}
		}
	}
}

func networks(w *fixture.Workspace) policyOf {
	w.T.Helper()
	policy, err := w.System.Kube.NetworkingV1().NetworkPolicies(w.Namespace).
		Get(w.T.Context(), w.Name, metav1.GetOptions{})
	require.NoError(w.T, err)
	var p policyOf
	p.read(policy)
	return p
}

func hasQuota(ctx context.Context, w *fixture.Workspace) (bool, error) {
	_, err := w.System.Kube.CoreV1().ResourceQuotas(w.Namespace).Get(ctx, w.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// storageClass creates a class with the volumes of the default class.
func storageClass(s *fixture.System, name string) {
	s.T.Helper()
	classes := s.Kube.StorageV1().StorageClasses()
	all, err := classes.List(s.T.Context(), metav1.ListOptions{})
	require.NoError(s.T, err)
	class := all.Items[0].DeepCopy()
	class.ObjectMeta = metav1.ObjectMeta{Name: name}
	if _, err = classes.Create(s.T.Context(), class, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		require.NoError(s.T, err)
	}
}

// TestSettingsReachTheAppliedObjects follows each setting from the cell, and then from the agent, to the objects that
// the dispatcher has applied.
func TestSettingsReachTheAppliedObjects(t *testing.T) {
	t.Parallel()
	s := fixture.Start(t, func(_ string, config any) {
		if cfg, is := config.(*state.Config); is {
			cellSettings(&cfg.Workspace)
		}
	})
	storageClass(s, "cell-class")
	storageClass(s, "agent-class")
	cli, agent := s.CLI(), s.Agents()[0].Name
	create := func(name string) *fixture.Workspace { return s.Create(name, fixture.GoodImage) }
	sizes := func(w *fixture.Workspace) []string {
		limits := w.Deployment().Spec.Template.Spec.Containers[0].Resources.Limits
		return []string{
			limits.Cpu().String(), limits.Memory().String(),
			w.Claim().Spec.Resources.Requests.Storage().String(), *w.Claim().Spec.StorageClassName,
		}
	}
	relayAgent := "lockstep-agent-" + strconv.FormatInt(s.AgentID, 10) + " app.kubernetes.io/name=lockstep-relay-agent"

	w := create("settings")
	w.AwaitRunning()
	require.Equal(t, "dev-"+strconv.FormatInt(s.AgentID, 10)+"-settings", w.Deployment().Namespace)
	got := networks(w)
	require.Equal(t, []string{relayAgent, "monitoring app=prometheus"}, got.ingress)
	require.Equal(t, []string{"kube-system k8s-app=kube-dns", "dns app=unbound"}, got.dns)
	require.Contains(t, got.private, "10.0.0.0/8")
	require.Contains(t, got.private, "203.0.113.0/24")
	require.Equal(t, []string{"10.9.0.0/16"}, got.allowed)
	require.EqualValues(t, 540, *w.Deployment().Spec.ProgressDeadlineSeconds)
	require.Equal(t, []string{"250m", "512Mi", "2Gi", "cell-class"}, sizes(w))
	quota, err := hasQuota(t.Context(), w)
	require.NoError(t, err)
	require.True(t, quota)
	require.Contains(t, cli.Fails(2, "ws", "update", "settings", "--cpu", "65"),
		`cpu: "65" is more than max_cpu of the cell, which is 64`)

	pod := w.PodUID()
	cli.OK("agent", "configure", agent, "--ingress-peers", "lockstep-agent-{agent_id}:a=b",
		"--dns-peers", "kube-system", "--private-ranges", "10.0.0.0/8,fc00::/7", "--egress-allowed", "10.8.0.0/16",
		"--progress-deadline", "8m", "--resource-quota=false", "--storage-class", "agent-class",
		"--default-cpu", "200m", "--default-memory", "256Mi", "--default-volume-size", "1Gi",
		"--max-cpu", "2", "--max-memory", "3Gi", "--max-volume-size", "4Gi")
	w.AwaitCluster("applied settings of the agent", func(ctx context.Context) (bool, error) {
		quota, err := hasQuota(ctx, w)
		return !quota && w.DeploymentRevision() == 2, err
	})
	got = networks(w)
	require.Equal(t, []string{"lockstep-agent-" + strconv.FormatInt(s.AgentID, 10) + " a=b"}, got.ingress)
	require.Equal(t, []string{"kube-system <none>"}, got.dns)
	require.Equal(t, []string{"10.0.0.0/8", "fc00::/7"}, got.private)
	require.Equal(t, []string{"10.8.0.0/16"}, got.allowed)
	require.EqualValues(t, 480, *w.Deployment().Spec.ProgressDeadlineSeconds)
	require.Equal(t, []string{"250m", "512Mi", "2Gi", "cell-class"}, sizes(w), "sizes are of new workspaces")
	w.AwaitRunning()
	require.Equal(t, pod, w.PodUID(), "the pod goes on")
	require.Contains(t, cli.OK("ws", "events", "settings"), "cause=settings")

	other := create("settings-2")
	other.AwaitRunning()
	require.Equal(t, []string{"200m", "256Mi", "1Gi", "agent-class"}, sizes(other))
	for flag, want := range map[string]string{
		"--cpu=3":      `cpu: "3" is more than max_cpu of agent "` + agent + `", which is 2`,
		"--memory=4Gi": `memory: "4Gi" is more than max_memory of agent "` + agent + `", which is 3Gi`,
		"--volume=5Gi": `volume_size: "5Gi" is more than max_volume_size of agent "` + agent + `", which is 4Gi`,
	} {
		require.Contains(t, cli.Fails(2, "ws", "update", "settings-2", flag), want)
	}
	require.Regexp(t, `(?m)^max cpu +2$`, cli.OK("agent", "get", agent))
	require.Regexp(t, `(?m)^max cpu +64$`, cli.OK("agent", "configure", agent, "--reset", "max_cpu"))
	for _, each := range []*fixture.Workspace{w, other} {
		each.Terminate()
		each.AwaitTerminated()
	}
}
