package architecture_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/architecture"
)

func TestImportsFollowTheRules(t *testing.T) {
	t.Parallel()
	_, tree := read(t)
	// A tree without packages would have no faults either.
	require.Greater(t, len(tree.Packages), 20)
	for _, imports := range []struct{ pkg, imported string }{
		{"lockstep.internal/libs/fault", "lockstep.internal/schemas/gen/errcode"},
		{"lockstep.internal/services/state", "lockstep.internal/libs/fault"},
	} {
		require.Contains(t, importsOf(tree, imports.pkg), imports.imported)
	}
	require.Empty(t, architecture.Imports(tree.Packages))
}

func importsOf(tree architecture.Tree, pkg string) []string {
	for _, p := range tree.Packages {
		if p.Path == pkg {
			return p.Imports
		}
	}
	return nil
}

func TestForbiddenImportsAreFound(t *testing.T) {
	t.Parallel()
	const own = architecture.Prefix
	for _, c := range []struct {
		name, importer, imported string
		test                     bool // the import is a test's
		wrong                    bool
	}{
		{name: "a service imports another", importer: "services/watcher", imported: "services/state", wrong: true},
		{
			name: "a service imports a package of another", importer: "services/watcher/kube",
			imported: "services/state/postgres", wrong: true,
		},
		{
			name: "a service's program imports another service", importer: "services/watcher/cmd/watcher",
			imported: "services/state", wrong: true,
		},
		{
			name: "a service's test imports another service", importer: "services/watcher", imported: "services/state",
			test: true, wrong: true,
		},
		{
			name: "a service whose name begins like another's", importer: "services/state", imported: "services/stateful",
			wrong: true,
		},
		{name: "a service imports its own", importer: "services/state/api", imported: "services/state/postgres"},
		{name: "a service imports libs", importer: "services/state", imported: "libs/event"},
		{name: "a service imports the wire", importer: "services/state", imported: "schemas/gen/events"},
		{name: "a service imports testkit", importer: "services/state", imported: "tools/testkit/natsd", wrong: true},
		{name: "a service's test imports testkit", importer: "services/state", imported: "tools/testkit/natsd", test: true},
		{name: "a service imports tools", importer: "services/state", imported: "tools/client", wrong: true},
		{
			name: "a service's test imports tools", importer: "services/state", imported: "tools/stack", test: true,
			wrong: true,
		},
		{
			name: "a service imports the generator", importer: "services/state", imported: "tools/generate/catalog",
			wrong: true,
		},
		{name: "a service imports e2e", importer: "services/state", imported: "e2e/architecture", wrong: true},
		{name: "libs import a service", importer: "libs/event", imported: "services/state", wrong: true},
		{
			name: "a test of libs imports a service", importer: "libs/event", imported: "services/state", test: true,
			wrong: true,
		},
		{name: "libs import tools", importer: "libs/event", imported: "tools/client", wrong: true},
		{name: "libs import testkit", importer: "libs/event", imported: "tools/testkit/pg", wrong: true},
		{name: "a test of libs imports testkit", importer: "libs/event", imported: "tools/testkit/pg", test: true},
		{name: "libs import the wire", importer: "libs/fault", imported: "schemas/gen/errcode"},
		{name: "libs import libs", importer: "libs/outbox", imported: "libs/event"},
		{name: "the wire imports libs", importer: "schemas/gen/events", imported: "libs/event", wrong: true},
		{
			name: "a test of the wire imports testkit", importer: "schemas/gen/events", imported: "tools/testkit/pg",
			test: true, wrong: true,
		},
		{
			name: "the wire imports the wire", importer: "schemas/gen/lockstep/state/v1/statev1connect",
			imported: "schemas/gen/lockstep/state/v1",
		},
		{name: "testkit imports libs", importer: "tools/testkit/natsd", imported: "libs/natsauth", wrong: true},
		{name: "testkit imports tools", importer: "tools/testkit/lab", imported: "tools/stack", wrong: true},
		{name: "testkit imports kubelab", importer: "tools/testkit/lab", imported: "tools/kubelab/lab", wrong: true},
		{name: "testkit imports testkit", importer: "tools/testkit/pgtest", imported: "tools/testkit/pg"},
		{name: "kubelab imports libs", importer: "tools/kubelab", imported: "libs/service", wrong: true},
		{name: "tools import kubelab", importer: "tools/stack", imported: "tools/kubelab/lab", wrong: true},
		{name: "tools import a service", importer: "tools/stack", imported: "services/state"},
		{name: "tools import testkit", importer: "tools/stack", imported: "tools/testkit/lab"},
		{name: "tools import e2e", importer: "tools/stack", imported: "e2e/architecture", wrong: true},
		{name: "the generator imports a service", importer: "tools/generate", imported: "services/state", wrong: true},
		{name: "e2e imports a service", importer: "e2e", imported: "services/state", test: true},
		{name: "e2e imports tools", importer: "e2e", imported: "tools/stack", test: true},
		{name: "a folder without a layer", importer: "shared/things", imported: "libs/event", wrong: true},
		{name: "a folder whose name begins like a layer's", importer: "libsandmore", imported: "libs/event", wrong: true},
		{name: "an import of a folder without a layer", importer: "libs/event", imported: "shared/things", wrong: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := architecture.Package{Path: own + c.importer}
			if c.test {
				p.TestImports = []string{"testing", own + c.imported}
			} else {
				p.Imports = []string{"context", own + c.imported}
			}
			if c.wrong {
				require.Len(t, architecture.Imports([]architecture.Package{p}), 1)
			} else {
				require.Empty(t, architecture.Imports([]architecture.Package{p}))
			}
		})
	}
}
