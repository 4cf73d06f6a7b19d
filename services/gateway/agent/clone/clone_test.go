package clone

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/workspaceagent"
)

// read returns the content of a file of a cloned project.
func read(t *testing.T, parts ...string) string {
	content, err := os.ReadFile(filepath.Join(parts...))
	require.NoError(t, err)
	return string(content)
}

func TestProjectIsCloned(t *testing.T) {
	s := newGitServer(t)
	folder := s.repository("shop")
	first := s.git(folder, "rev-list", "--max-parents=0", "main")
	s.git(folder, "checkout", "--quiet", "next")
	s.commit(folder, "file", "in next")
	s.git(folder, "checkout", "--quiet", "main")
	for name, c := range map[string]struct {
		project workspaceagent.Project
		content string
		commits string
	}{
		"by default": {workspaceagent.Project{}, "shop 2", "3"},
		"a branch":   {workspaceagent.Project{Revision: "next"}, "in next", "4"},
		"a tag":      {workspaceagent.Project{Revision: "v1"}, "shop 1", "2"},
		"a commit":   {workspaceagent.Project{Revision: first, Depth: 1}, "shop 0", "1"},
		"shallow":    {workspaceagent.Project{Depth: 1}, "shop 2", "1"},
		"a shallow branch, in another folder": {
			workspaceagent.Project{Revision: "next", Depth: 1, Folder: "src/shop"}, "in next", "1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			cloner := s.cloner(s.secrets(nil))
			p := c.project
			p.Name, p.URL = "shop", s.url("shop")
			p.Remotes = map[string]string{"upstream": "https://example.com/shop.git"}
			outcome, err := cloner.Clone(t.Context(), p)
			require.NoError(t, err)
			require.Equal(t, Cloned, outcome)
			clone := filepath.Join(cloner.Home, p.Path())
			require.Equal(t, c.content, read(t, clone, "file"))
			require.Equal(t, c.commits, s.git(clone, "rev-list", "--count", "HEAD"))
			require.Equal(t, "https://example.com/shop.git", s.git(clone, "remote", "get-url", "upstream"))
			require.Empty(t, s.git(clone, "status", "--porcelain"))
			left, err := filepath.Glob(filepath.Join(cloner.Home, temporary+"*"))
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestWorkIsNeverOverwritten(t *testing.T) {
	s := newGitServer(t)
	s.repository("shop")
	cloner := s.cloner(s.secrets(nil))
	p := workspaceagent.Project{Name: "shop", URL: s.url("shop")}
	work := filepath.Join(cloner.Home, "shop")
	require.NoError(t, os.Mkdir(work, 0o755)) // an empty folder is no work
	outcome, err := cloner.Clone(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, Cloned, outcome)
	require.NoError(t, os.WriteFile(filepath.Join(work, "file"), []byte("mine"), 0o600))
	outcome, err = cloner.Clone(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, Kept, outcome)
	require.Equal(t, "mine", read(t, work, "file"))

	require.NoError(t, os.WriteFile(filepath.Join(cloner.Home, "plain"), []byte("a file"), 0o600))
	_, err = cloner.Clone(t.Context(), workspaceagent.Project{Name: "plain", URL: s.url("shop")})
	require.ErrorContains(t, err, "not a directory")
	require.Equal(t, "a file", read(t, cloner.Home, "plain"))
}

func TestInterruptedCloneIsMadeAgain(t *testing.T) {
	s := newGitServer(t)
	s.repository("shop")
	cloner := s.cloner(s.secrets(nil))
	left := filepath.Join(cloner.Home, temporary+"1", "clone")
	require.NoError(t, os.MkdirAll(left, 0o755))
	require.NoError(t, cloner.RemoveIncomplete())
	require.NoDirExists(t, filepath.Dir(left))
	outcome, err := cloner.Clone(t.Context(), workspaceagent.Project{Name: "shop", URL: s.url("shop")})
	require.NoError(t, err)
	require.Equal(t, Cloned, outcome)
}

func TestSubmodulesGetTheCredentialsOfTheirHostOnly(t *testing.T) {
	s, other := newGitServer(t), newGitServer(t)
	s.repository("shared")
	s.repository("inner")
	other.repository("public/library")
	shop := s.repository("shop")
	add := func(folder, from, to, address string) {
		s.git(folder, "submodule", "--quiet", "add", from, to)
		s.git(folder, "config", "-f", ".gitmodules", "submodule."+to+".url", address)
		s.git(folder, "add", ".gitmodules")
		s.git(folder, "commit", "--quiet", "-m", "add "+to)
	}
	add(filepath.Join(s.folder, "shared"), filepath.Join(s.folder, "inner"), "inner", s.url("inner"))
	add(shop, filepath.Join(s.folder, "shared"), "shared", "../../"+"shared/.git")
	add(shop, filepath.Join(other.folder, "public/library"), "library", other.url("public/library"))

	authorities := read(t, writeAuthorities(t, s, other))
	cloner := s.cloner(s.secrets(map[string]string{workspaceagent.Authorities: authorities}))
	_, err := cloner.Clone(t.Context(), workspaceagent.Project{Name: "shop", URL: s.url("shop")})
	require.NoError(t, err)
	require.Equal(t, "shared 2", read(t, cloner.Home, "shop", "shared", "file"))
	require.Equal(t, "inner 2", read(t, cloner.Home, "shop", "shared", "inner", "file"))
	require.Equal(t, "public/library 2", read(t, cloner.Home, "shop", "library", "file"))
	require.NotEmpty(t, other.headers)
	for _, header := range other.headers {
		require.Empty(t, header.Get("Authorization"), "the account of another host")
	}
}

func writeAuthorities(t *testing.T, servers ...*gitServer) (path string) {
	path = filepath.Join(t.TempDir(), workspaceagent.Authorities)
	var all []byte
	for _, s := range servers {
		all = append(all, s.authority()...)
	}
	require.NoError(t, os.WriteFile(path, all, 0o600))
	return path
}

func TestSubmoduleMustNotReadFilesOfTheContainer(t *testing.T) {
	s := newGitServer(t)
	shop := s.repository("shop")
	secret := s.repository("secret")
	s.git(shop, "submodule", "--quiet", "add", secret, "secret")
	s.git(shop, "commit", "--quiet", "-m", "add secret")
	cloner := s.cloner(s.secrets(nil))
	_, err := cloner.Clone(t.Context(), workspaceagent.Project{Name: "shop", URL: s.url("shop")})
	require.ErrorContains(t, err, "submodule secret")
	require.ErrorContains(t, err, "want https, http or ssh")
	require.NoDirExists(t, filepath.Join(cloner.Home, "shop"))
}

func TestRedirectionDoesNotGetTheAccount(t *testing.T) {
	s := newGitServer(t)
	s.repository("shop")
	var seen []string
	thief := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusNotFound)
	}))
	defer thief.Close()
	s.web.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, strings.Replace(thief.URL, "127.0.0.1", "localhost", 1)+r.URL.Path+"?"+r.URL.RawQuery,
			http.StatusFound)
	})
	_, err := s.cloner(s.secrets(nil)).Clone(t.Context(), workspaceagent.Project{Name: "shop", URL: s.url("shop")})
	require.Error(t, err)
	for _, authorization := range seen {
		require.Empty(t, authorization)
	}
}

func TestRepositoryIsClonedOverSSH(t *testing.T) {
	s := newGitServer(t)
	s.repository("shop")
	address, secrets := s.sshGitServer()
	p := workspaceagent.Project{Name: "shop", URL: "ssh://git@" + address + filepath.Join(s.folder, "shop")}
	cloner := s.cloner(s.secrets(secrets))
	_, err := cloner.Clone(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, "shop 2", read(t, cloner.Home, "shop", "file"))

	_, otherHosts := s.sshGitServer()
	secrets[workspaceagent.KnownHosts] = otherHosts[workspaceagent.KnownHosts]
	_, err = s.cloner(s.secrets(secrets)).Clone(t.Context(), p)
	require.ErrorContains(t, err, "key is unknown")
	secrets[workspaceagent.KnownHosts] = ""
	_, err = s.cloner(s.secrets(secrets)).Clone(t.Context(), p)
	require.ErrorContains(t, err, "add the secret file known_hosts")
	_, err = s.cloner(s.secrets(nil)).Clone(t.Context(), p)
	require.ErrorContains(t, err, "add the secret file ssh-key")
}

func TestErrorsSayWhatToDo(t *testing.T) {
	s := newGitServer(t)
	s.repository("shop")
	withPassword := strings.Replace(s.web.URL, "://", "://eve:wrong@", 1)
	for name, c := range map[string]struct {
		secrets map[string]string
		project workspaceagent.Project
		want    []string
	}{
		"no account": {
			map[string]string{workspaceagent.GitCredentials: ""},
			workspaceagent.Project{URL: s.url("shop")},
			[]string{"clone shop from " + s.url("shop"), "asks for an account", "secret file git-credentials"},
		},
		"a wrong account": {
			map[string]string{workspaceagent.GitCredentials: withPassword + "\n"},
			workspaceagent.Project{URL: s.url("shop")},
			[]string{"git-credentials"},
		},
		"no such repository": {nil, workspaceagent.Project{URL: s.url("other")}, []string{"there is no such repository"}},
		"no such revision": {
			nil,
			workspaceagent.Project{URL: s.url("shop"), Revision: "mian"},
			[]string{`revision "mian" is not a branch, a tag or the full id of a commit; there are main, next, v1`},
		},
		"no such commit": {
			nil,
			workspaceagent.Project{URL: s.url("shop"), Revision: strings.Repeat("0123", 10)},
			[]string{"check out the commit 01230123"},
		},
		"an unknown authority": {
			map[string]string{workspaceagent.Authorities: ""},
			workspaceagent.Project{URL: s.url("shop")},
			[]string{"is not trusted", "secret file ca.crt"},
		},
		"a password in the URL": {
			nil,
			workspaceagent.Project{URL: "https://ada:hidden@example.com/x.git"},
			[]string{"has a password", "git-credentials", "ada:xxxxx@"},
		},
		"a file": {nil, workspaceagent.Project{URL: "file:///etc"}, []string{"want https, http or ssh"}},
		"a path": {nil, workspaceagent.Project{URL: "/etc"}, []string{"want https, http or ssh"}},
		"a folder outside": {
			nil, workspaceagent.Project{URL: s.url("shop"), Folder: "../x"}, []string{"is not a folder below"},
		},
		"the home folder": {
			nil, workspaceagent.Project{URL: s.url("shop"), Folder: "."}, []string{"is not a folder below"},
		},
		"the agent's files": {
			nil, workspaceagent.Project{URL: s.url("shop"), Folder: ".lockstep/x"}, []string{"is not a folder below"},
		},
		"a negative depth": {nil, workspaceagent.Project{URL: s.url("shop"), Depth: -1}, []string{"depth is -1"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.project.Name = "shop"
			cloner := s.cloner(s.secrets(c.secrets))
			_, err := cloner.Clone(t.Context(), c.project)
			require.Error(t, err)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			require.NotContains(t, err.Error(), "hidden")
			require.NotContains(t, err.Error(), "wrong")
			entries, err := os.ReadDir(cloner.Home)
			require.NoError(t, err)
			require.Empty(t, entries, "nothing is left")
		})
	}
}

func TestAccountIsForItsHostSchemeAndPath(t *testing.T) {
	var c Credentials
	require.NoError(t, c.loadAccounts("", []byte("https://a:1@example.com/group\nhttps://b:2@example.com\n")))
	for address, want := range map[string]string{
		"https://example.com/group/x.git":   "a",
		"https://example.com/group":         "a",
		"https://example.com/groups/x.git":  "b",
		"https://b@example.com/group/x.git": "b",
		"https://example.com:8443/x.git":    "",
		"http://example.com/x.git":          "",
		"https://example.com.evil.org/x":    "",
	} {
		method, err := c.method(address)
		require.NoError(t, err)
		if want == "" {
			require.Nil(t, method, address)
			continue
		}
		require.Contains(t, method.String(), want+":", address)
	}
}

func TestInvalidSecretFilesAreErrorsWithoutTheirContent(t *testing.T) {
	for file, content := range map[string]string{
		workspaceagent.GitCredentials: "https://user:hidden@example.com\nhidden\n", workspaceagent.SSHKey: "hidden",
		workspaceagent.Authorities: "hidden",
		workspaceagent.KnownHosts:  "hidden line",
	} {
		folder := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(folder, file), []byte(content), 0o600))
		_, err := LoadCredentials(folder)
		require.ErrorContains(t, err, "secret file "+file)
		if file != workspaceagent.KnownHosts { // public
			require.NotContains(t, err.Error(), "hidden")
		}
	}
	_, err := LoadCredentials("")
	require.NoError(t, err)
}
