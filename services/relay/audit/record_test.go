package audit_test

import (
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/audit"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestDescribe(t *testing.T) {
	t.Parallel()
	type resource = audit.Resource
	for name, c := range map[string]struct {
		method, path string
		watch        bool
		verb         string
		want         audit.Resource
	}{
		"list": {"GET", "/api/v1/pods", false, "list", resource{Version: "v1", Resource: "pods"}},
		"list of a namespace": {
			"GET", "/api/v1/namespaces/shop/pods", false, "list", resource{Version: "v1", Resource: "pods", Namespace: "shop"},
		},
		"get": {
			"GET", "/apis/apps/v1/namespaces/shop/deployments/web", false, "get",
			resource{"apps", "v1", "deployments", "", "shop", "web"},
		},
		"head": {
			"HEAD", "/apis/apps/v1/deployments", false, "list", resource{Group: "apps", Version: "v1", Resource: "deployments"},
		},
		"watch": {"GET", "/api/v1/pods", true, "watch", resource{Version: "v1", Resource: "pods"}},
		"watch of one object is a get": {
			"GET", "/api/v1/namespaces/shop/pods/web", true, "get",
			resource{Version: "v1", Resource: "pods", Namespace: "shop", Name: "web"},
		},
		"watch by path": {
			"GET", "/api/v1/watch/namespaces/shop/pods/web", false, "watch",
			resource{Version: "v1", Resource: "pods", Namespace: "shop", Name: "web"},
		},
		"create": {
			"POST", "/api/v1/namespaces/shop/pods", true, "create", resource{Version: "v1", Resource: "pods", Namespace: "shop"},
		},
		"update": {
			"PUT", "/api/v1/nodes/a/status", false, "update",
			resource{Version: "v1", Resource: "nodes", Subresource: "status", Name: "a"},
		},
		"patch": {
			"PATCH", "/api/v1/nodes/a", false, "patch", resource{Version: "v1", Resource: "nodes", Name: "a"},
		},
		"delete": {
			"DELETE", "/api/v1/nodes/a", false, "delete", resource{Version: "v1", Resource: "nodes", Name: "a"},
		},
		"delete all": {
			"DELETE", "/api/v1/namespaces/shop/pods", false, "deletecollection",
			resource{Version: "v1", Resource: "pods", Namespace: "shop"},
		},
		"exec": {
			"POST", "/api/v1/namespaces/shop/pods/web/exec", false, "create", resource{"", "v1", "pods", "exec", "shop", "web"},
		},
		"proxy subresource with path": {
			"GET", "/api/v1/nodes/a/proxy/logs/secret", false, "get",
			resource{Version: "v1", Resource: "nodes", Subresource: "proxy", Name: "a"},
		},
		"namespaces": {
			"GET", "/api/v1/namespaces", false, "list", resource{Version: "v1", Resource: "namespaces"},
		},
		"a namespace": {
			"GET", "/api/v1/namespaces/shop", false, "get",
			resource{Version: "v1", Resource: "namespaces", Namespace: "shop", Name: "shop"},
		},
		"finalizing a namespace": {
			"PUT", "/api/v1/namespaces/shop/finalize", false, "update",
			resource{"", "v1", "namespaces", "finalize", "shop", "shop"},
		},
		"status of a namespace": {
			"PUT", "/api/v1/namespaces/shop/status", false, "update", resource{"", "v1", "namespaces", "status", "shop", "shop"},
		},
		"a resource named watch": {
			"GET", "/apis/x.io/v1/watch", false, "list", resource{Group: "x.io", Version: "v1", Resource: "watch"},
		},
		"extra slashes": {
			"GET", "//api/v1/pods//", false, "list", resource{Version: "v1", Resource: "pods"},
		},
		"API group list":               {"GET", "/apis", false, "", resource{}},
		"API group":                    {"GET", "/apis/apps", false, "", resource{}},
		"resources of a group version": {"GET", "/apis/apps/v1", false, "", resource{}},
		"resources of core v1":         {"GET", "/api/v1/", false, "", resource{}},
		"no resource":                  {"GET", "/version", true, "", resource{}},
		"root path":                    {"GET", "/", false, "", resource{}},
		"unsupported method": {
			"OPTIONS", "/api/v1/pods", false, "options", resource{Version: "v1", Resource: "pods"},
		},
		"similar prefix": {"GET", "/apiv/v1/pods", false, "", resource{}},
		"a namespace without a resource": {
			"GET", "/api/v1/namespaces/shop/", false, "get",
			resource{Version: "v1", Resource: "namespaces", Namespace: "shop", Name: "shop"},
		},
	} {
		verb, got := audit.Describe(c.method, c.path, c.watch)
		require.Equal(t, c.verb, verb, name)
		require.Equal(t, c.want, got, name)
	}
}

func FuzzDescribe(f *testing.F) {
	f.Add("GET", "/api/v1/namespaces/shop/pods/web/log", true)
	f.Add("POST", "/apis/apps/v1/watch/namespaces/", false)
	f.Add("GET", "/api//watch", false)
	f.Fuzz(func(t *testing.T, method, path string, watch bool) {
		verb, r := audit.Describe(method, path, watch)
		if verb == "" && method != "" {
			require.Equal(t, audit.Resource{}, r)
		}
		for _, part := range []string{r.Group, r.Version, r.Resource, r.Subresource, r.Namespace, r.Name} {
			require.LessOrEqual(t, len(part), 253)
			require.True(t, utf8.ValidString(part))
			require.NotContains(t, part, "/")
		}
	})
}

func TestTruncateKeepsValidUTF8(t *testing.T) {
	t.Parallel()
	require.Equal(t, "añ", audit.Truncate("añb", 3))
	require.Equal(t, "a", audit.Truncate("añb", 2))
	require.Equal(t, "ab", audit.Truncate("a\xffb", 9))
}
