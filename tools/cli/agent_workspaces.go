package cli

import (
	"cmp"
	"strings"

	"github.com/spf13/cobra"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// workspaceFlags are the flags of the settings that an agent overrides the cell with.
type workspaceFlags struct {
	texts map[string]*string
	lists map[string]*[]string
	quota bool
	owner bool
	// processes is the setting of idle workspaces.
	processes bool
}

const (
	resourceQuotaFlag = "resource-quota"
	ownerAccessFlag   = "owner-access"
)

func (f *workspaceFlags) add(c *cobra.Command) {
	f.texts, f.lists = map[string]*string{}, map[string]*[]string{}
	for _, text := range []struct{ flag, help string }{
		{"default-cpu", "CPU of new workspaces, if neither the request nor the template sets it"},
		{"default-memory", "memory of new workspaces, if neither the request nor the template sets it"},
		{"default-volume-size", "volume size of new workspaces, if neither the request nor the template sets it"},
		{"max-cpu", "maximum CPU of a workspace; empty = unlimited"},
		{"max-memory", "maximum memory of a workspace; empty = unlimited"},
		{"max-volume-size", "maximum volume size of a workspace; empty = unlimited"},
		{
			"agent-image",
			"image of the workspace agent, which clones projects and serves SSH; replaces the pods; empty = none",
		},
		{"storage-class", "StorageClass of the volumes of new workspaces; empty = the cluster's default"},
	} {
		f.texts[text.flag] = c.Flags().String(text.flag, "", text.help)
	}
	for _, list := range []struct{ flag, help string }{
		{
			"ingress-peers", "pods that may connect to workspaces: NAMESPACE:LABEL=VALUE,…; " +
				"replaces all, the relay agent included; empty = none",
		},
		{
			"dns-peers", "pods that answer DNS queries of workspaces: NAMESPACE:LABEL=VALUE,…; " +
				"replaces all; empty = none",
		},
		{"private-ranges", "networks that workspaces may not reach: 10.0.0.0/8,…; " +
			"replaces the private, shared, link-local and loopback ranges; empty = none"},
		{"egress-allowed", "exceptions from the private ranges: 10.1.2.0/24,…; replaces all; empty = none"},
		{"ssh-authorities", "public keys of gateways, which sign the certificates of SSH connections to workspaces: " +
			"'ssh-ed25519 AAAA…',…; replaces all; empty = none"},
	} {
		f.lists[list.flag] = c.Flags().StringSlice(list.flag, nil, list.help)
	}
	c.Flags().BoolVar(&f.quota, resourceQuotaFlag, false, "limit each workspace's namespace with a ResourceQuota")
	c.Flags().BoolVar(&f.owner, ownerAccessFlag, false,
		"let the owner of each workspace use the Kubernetes API in its namespace")
	c.Flags().BoolVar(&f.processes, idleCountsProcessesFlag, false,
		"programs that people have started keep workspaces alive while they work; needs stop-after-idle")
}

// change sets the fields of the flags that are given, and reports whether there are any.
func (f *workspaceFlags) change(c *cobra.Command, out *statev1.AgentConfiguration) bool {
	given := false
	for flag, to := range map[string]**string{
		"default-cpu": &out.DefaultCpu, "default-memory": &out.DefaultMemory,
		"default-volume-size": &out.DefaultVolumeSize,
		"max-cpu":             &out.MaxCpu, "max-memory": &out.MaxMemory, "max-volume-size": &out.MaxVolumeSize,
		"storage-class": &out.StorageClass, "agent-image": &out.AgentImage,
	} {
		if c.Flags().Changed(flag) {
			*to, given = f.texts[flag], true
		}
	}
	for flag, to := range map[string]**statev1.StringList{
		"ingress-peers": &out.IngressPeers, "dns-peers": &out.DnsPeers,
		"private-ranges": &out.PrivateRanges, "egress-allowed": &out.EgressAllowed,
		"ssh-authorities": &out.SshAuthorities,
	} {
		if c.Flags().Changed(flag) {
			*to, given = &statev1.StringList{Values: *f.lists[flag]}, true
		}
	}
	if c.Flags().Changed(resourceQuotaFlag) {
		out.ResourceQuota, given = &f.quota, true
	}
	if c.Flags().Changed(ownerAccessFlag) {
		out.OwnerAccess, given = &f.owner, true
	}
	if c.Flags().Changed(idleCountsProcessesFlag) {
		out.IdleCountsProcesses, given = &f.processes, true
	}
	return given
}

// workspaceSettings returns the rows of these settings.
func workspaceSettings(c *statev1.AgentConfiguration) [][]string {
	list := func(l *statev1.StringList) string { return cmp.Or(strings.Join(l.GetValues(), ", "), "none") }
	answer := func(is bool) string {
		if is {
			return "yes"
		}
		return "no"
	}
	return [][]string{
		{"default cpu", c.GetDefaultCpu()},
		{"default memory", c.GetDefaultMemory()},
		{"default volume size", c.GetDefaultVolumeSize()},
		{"max cpu", cmp.Or(c.GetMaxCpu(), "unlimited")},
		{"max memory", cmp.Or(c.GetMaxMemory(), "unlimited")},
		{"max volume size", cmp.Or(c.GetMaxVolumeSize(), "unlimited")},
		{"storage class", cmp.Or(c.GetStorageClass(), "the cluster's default")},
		{"resource quota", answer(c.GetResourceQuota())},
		{"owner access", answer(c.GetOwnerAccess())},
		{"idle counts processes", answer(c.GetIdleCountsProcesses())},
		{"progress deadline", shortDuration(c.GetProgressDeadline())},
		{"ingress peers", list(c.GetIngressPeers())},
		{"dns peers", list(c.GetDnsPeers())},
		{"private ranges", list(c.GetPrivateRanges())},
		{"egress allowed", list(c.GetEgressAllowed())},
		{"agent image", cmp.Or(c.GetAgentImage(), "none")},
		{"ssh authorities", list(c.GetSshAuthorities())},
	}
}
