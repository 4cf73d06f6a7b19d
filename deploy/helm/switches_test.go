package helm_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
)

// switches turn parts of the chart on or off.
var switches = []struct { //nolint:gochecknoglobals // a table
	name   string
	change values
}{
	{"without state", values{"state": values{"enabled": false}}},
	{"without deploys", values{"deploys": values{"enabled": false}}},
	{"without relay", values{"relay": values{"enabled": false}}},
	{"without keys", values{"keys": values{"enabled": false}}},
	{"other NATS, other store of artifacts", values{
		"nats": values{"url": "tls://a:4222,tls://b:4223"},
		"runners": values{"artifacts": values{"kind": "s3", "s3": values{
			"endpoint": "https://s3.example", "bucket": "artifacts", "secretName": "s3-keys", "caSecretName": "s3-ca",
		}}},
	}},
	{"WebSockets", values{"nats": values{"service": values{"webSocketPort": 443}}}},
	{"database by URL", values{"postgresql": values{"urls": values{
		"state": "postgres://x_state@db:5433/x", "deploys": "postgres://x_deploys@db:5433/x",
		"runners": "postgres://x_runners@db:5433/x", "admission": "postgres://x_admission@db:5433/x",
	}}}},
	{"database by Secret", values{"postgresql": values{
		"secretNames": values{
			"state": "state-db", "deploys": "deploys-db", "runners": "runners-db", "admission": "admission-db",
		}, "secretKey": "dsn",
		"port": 5433,
	}}},
	{"TLS", values{
		"nats": values{"tls": values{"secretName": "nats-tls"}}, "state": values{"tls": values{"secretName": "api-tls"}},
		"deploys": values{"tls": values{"secretName": "api-tls"}},
		"runners": values{
			"tls": values{"secretName": "api-tls"}, "state": values{"caSecretName": "state-ca"},
			"cell": values{"redirectURL": "https://r.example", "map": values{
				"url": "tls://map:4222", "secretName": "map-key", "caSecretName": "map-ca",
			}},
		},
		"admission": values{"tls": values{"secretName": "api-tls"}},
		"router":    values{"tls": values{"secretName": "api-tls"}, "cells": values{"caSecretName": "cells-ca"}},
		"gateway": values{
			"tls": values{"secretName": "api-tls"}, "state": values{"caSecretName": "state-ca"},
			"workspaces": values{"mode": "tunnel", "relay": values{"secretName": "relay-token"}},
		},
		"relay": values{"tls": values{"secretName": "relay-tls"}},
	}},
	{"ingress, monitoring, tracing, sinks, callers, settings, runners, admission, router, gateway", values{
		"state": values{
			"ingress":  values{"enabled": true, "host": "a.example", "tlsSecretName": "a"},
			"settings": values{"LOCKSTEP_TELEMETRY_LOG_LEVEL": "debug"},
		},
		"deploys": values{
			"ingress": values{"enabled": true, "host": "d.example", "className": "x", "annotations": values{"a": "b"}},
			"sinks":   values{"secretName": "sinks"},
		},
		"router":    values{"enabled": true, "ingress": values{"enabled": true, "host": "ci.example"}},
		"admission": values{"enabled": true, "ingress": values{"enabled": true, "host": "admission.example"}},
		"runners":   values{"enabled": true, "ingress": values{"enabled": true, "host": "r.example"}},
		"gateway": values{
			"enabled": true, "zone": "ws.example", "ingress": values{"enabled": true},
			"signIn": values{
				"issuer": "https://id.example", "clientID": "lockstep", "secretName": "oidc", "caSecretName": "oidc-ca",
			},
		},
		"relay":     values{"callers": values{"secretName": "callers"}, "hosts": []any{"relay.example"}},
		"nats":      values{"mapCells": []any{"eu-2", "eu-3"}},
		"telemetry": values{"otlpEndpoint": "http://collector:4317"},
		"monitoring": values{
			"serviceMonitors": values{"enabled": true, "labels": values{"team": "a"}}, "rules": values{"enabled": true},
		},
	}},
	{"without policies and budgets", values{
		"networkPolicies": values{"enabled": false}, "podDisruptionBudgets": values{"enabled": false},
	}},
}

func TestEveryCombinationOfSwitchesIsConsistent(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	for set := range 1 << len(switches) {
		given, name := values{}, "defaults"
		for i, s := range switches {
			if set&(1<<i) != 0 {
				given, name = merge(given, s.change), name+", "+s.name
			}
		}
		requireConsistent(render(t, loaded, name, given), given)
	}
}

func merge(into, from values) values {
	out := values{}
	maps.Copy(out, into)
	for key, value := range from {
		inner, both := out[key].(values)
		if outer, is := value.(values); is && both {
			out[key] = merge(inner, outer)
			continue
		}
		out[key] = value
	}
	return out
}

// requireConsistent checks what holds with all values.
func requireConsistent(r rendered, given values) {
	r.t.Helper()
	for service, byDefault := range map[string]bool{
		"state": true, "deploys": true, "runners": false, "admission": false, "router": false, "gateway": false,
		"relay": true,
	} {
		section, _ := given[service].(values)
		enabled, isSet := section["enabled"].(bool)
		if !isSet {
			enabled = byDefault
		}
		found := false
		for key := range r.all {
			found = found || strings.HasSuffix(key, "/"+releaseName+"-"+service)
		}
		require.Equal(r.t, enabled, found, "%s: %s", r.name, service)
	}
	var pods []workload
	for _, w := range r.workloads() {
		requireHardened(r, w)
		requireOwnSecrets(r, w)
		if w.selector != nil {
			pods = append(pods, w)
		}
	}
	matches := func(what string, selector map[string]string) workload {
		r.t.Helper()
		var found []workload
		for _, w := range pods {
			if labels.SelectorFromSet(selector).Matches(labels.Set(w.template.Labels)) {
				found = append(found, w)
			}
		}
		require.Len(r.t, found, 1, "%s: %s", r.name, what)
		return found[0]
	}
	each(r, "Service", func(s corev1.Service) {
		ports := sets.New[string]()
		for _, p := range matches(s.Name, s.Spec.Selector).template.Spec.Containers[0].Ports {
			ports.Insert(p.Name)
		}
		for _, p := range s.Spec.Ports {
			require.Contains(r.t, ports, p.TargetPort.String(), "%s: %s", r.name, s.Name)
			if p.TargetPort.String() == "ops" {
				require.Equal(r.t, corev1.ClusterIPNone, s.Spec.ClusterIP, "%s: %s", r.name, s.Name)
			}
		}
	})
	each(r, "PodDisruptionBudget", func(b policyv1.PodDisruptionBudget) { matches(b.Name, b.Spec.Selector.MatchLabels) })
	each(r, "Ingress", func(i networkingv1.Ingress) {
		backend := i.Spec.Rules[0].HTTP.Paths[0].Backend.Service
		service := decode[corev1.Service](r, "Service/"+backend.Name)
		require.Equal(r.t, backend.Port.Name, service.Spec.Ports[0].Name)
	})
	each(r, "NetworkPolicy", func(p networkingv1.NetworkPolicy) {
		if !slices.Contains([]string{releaseName + "-keys", releaseName + "-roles"}, p.Name) {
			matches(p.Name, p.Spec.PodSelector.MatchLabels)
		}
		require.Len(r.t, p.Spec.PolicyTypes, 2, p.Name)
		for _, rule := range p.Spec.Egress {
			require.NotEmpty(r.t, rule.Ports, "%s: %s may reach every port", r.name, p.Name)
		}
	})
	requireOnlyKeysHasPermissions(r)
}

// requireHardened checks the pods: no root, no writable root, no capabilities, a bound on memory, no token of
// Kubernetes.
func requireHardened(r rendered, w workload) {
	r.t.Helper()
	pod, at := w.template.Spec, r.name+": "+w.Name
	require.True(r.t, *pod.SecurityContext.RunAsNonRoot, at)
	require.Equal(r.t, corev1.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type, at)
	require.Equal(r.t, w.Name == releaseName+"-keys", *pod.AutomountServiceAccountToken, at)
	require.Contains(r.t, r.all, "ServiceAccount/"+pod.ServiceAccountName, at)
	require.Len(r.t, pod.Containers, 1, at)
	c := pod.Containers[0]
	require.True(r.t, *c.SecurityContext.ReadOnlyRootFilesystem, at)
	require.False(r.t, *c.SecurityContext.AllowPrivilegeEscalation, at)
	require.Equal(r.t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop, at)
	require.False(r.t, c.Resources.Limits.Memory().IsZero(), at)
	if w.selector != nil {
		require.NotNil(r.t, c.StartupProbe, at)
		require.NotNil(r.t, c.LivenessProbe, at)
		require.NotNil(r.t, c.ReadinessProbe, at)
		require.Subset(r.t, w.template.Labels, w.selector.MatchLabels, at)
	}
	mounts := sets.New[string]()
	for _, m := range c.VolumeMounts {
		mounts.Insert(m.Name)
	}
	for _, v := range pod.Volumes {
		require.Contains(r.t, mounts, v.Name, at)
		mounts.Delete(v.Name)
	}
	mounts.Delete("data") // a claim of a StatefulSet
	require.Empty(r.t, mounts, at)
	variables := sets.New[string]()
	for _, e := range c.Env {
		require.NotContains(r.t, variables, e.Name, at)
		variables.Insert(e.Name)
		if path, isFile := strings.CutPrefix(e.Value, "/"); isFile && strings.HasPrefix(e.Name, "LOCKSTEP_") {
			dir, _, _ := strings.Cut(path, "/")
			require.Contains(r.t, mountPaths(c), "/"+dir, "%s: %s", at, e.Name)
		}
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			require.Equal(r.t, releaseName+"-state", w.Name, "%s: %s", at, e.Name)
			require.Regexp(r.t, `\.pub$`, e.ValueFrom.SecretKeyRef.Key, "%s: %s", at, e.Name)
		}
	}
}

func mountPaths(c corev1.Container) []string {
	var paths []string
	for _, m := range c.VolumeMounts {
		path, _, _ := strings.Cut(m.MountPath[1:], "/")
		paths = append(paths, "/"+path)
	}
	return paths
}

// secretsOf returns the names of the Secrets that a pod mounts, with the keys; none stands for all.
func secretsOf(pod corev1.PodSpec) map[string][]string {
	found := map[string][]string{}
	add := func(name string, items []corev1.KeyToPath) {
		found[name] = append(found[name], "")
		for _, i := range items {
			found[name] = append(found[name], i.Key)
		}
	}
	for _, v := range pod.Volumes {
		if v.Secret != nil {
			add(v.Secret.SecretName, v.Secret.Items)
		}
		if v.Projected != nil {
			for _, s := range v.Projected.Sources {
				add(s.Secret.Name, s.Secret.Items)
			}
		}
	}
	return found
}

// requireOwnSecrets checks that no program mounts the key of another one.
func requireOwnSecrets(r rendered, w workload) {
	r.t.Helper()
	// Besides the Secret of its own name.
	allowed := map[string][]string{
		"state":   {"ls-admin", "ls-state-database", "state-db", "nats-tls", "api-tls"},
		"deploys": {"ls-deploys-database", "deploys-db", "nats-tls", "api-tls", "sinks"},
		"runners": {
			"ls-runners-database", "runners-db", "nats-tls", "api-tls", "s3-keys", "s3-ca", "state-ca", "map-key", "map-ca",
		},
		"admission":  {"ls-admission-database", "admission-db", "nats-tls", "api-tls"},
		"router":     {"nats-tls", "api-tls", "cells-ca"},
		"gateway":    {"nats-tls", "api-tls", "oidc", "oidc-ca", "state-ca", "relay-token"},
		"roles":      {"ls-postgresql", "ls-state", "ls-deploys", "ls-runners", "ls-admission"},
		"relay":      {"ls-relay-tls", "relay-tls", "nats-tls", "callers"},
		"nats":       {"nats-tls"},
		"postgresql": {},
		"keys":       {},
	}[w.Labels["app.kubernetes.io/component"]]
	for secret, keys := range secretsOf(w.template.Spec) {
		require.Contains(r.t, append(allowed, w.Name), secret, "%s: %s", r.name, w.Name)
		if secret == "nats-tls" && w.Name != releaseName+"-nats" {
			require.Equal(r.t, []string{"", "ca.crt"}, keys, "%s: %s has the key of NATS", r.name, w.Name)
		}
		if w.Labels["app.kubernetes.io/component"] == "roles" && secret != "ls-postgresql" {
			require.Equal(r.t, []string{"", "database.password"}, keys, "%s: %s", r.name, w.Name)
		}
	}
}

func requireOnlyKeysHasPermissions(r rendered) {
	r.t.Helper()
	each(r, "Role", func(role rbacv1.Role) {
		require.Equal(r.t, releaseName+"-keys", role.Name)
		for _, rule := range role.Rules {
			require.Equal(r.t, []string{"secrets"}, rule.Resources)
			if len(rule.ResourceNames) == 0 {
				require.Equal(r.t, []string{"create"}, rule.Verbs)
			}
		}
	})
	for key := range r.all {
		require.NotContains(r.t, key, "Cluster", r.name)
	}
}
