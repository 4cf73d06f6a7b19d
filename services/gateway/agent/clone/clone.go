package clone

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/client"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"

	"lockstep.internal/libs/workspaceagent"
)

const (
	remoteName = "origin"
	// temporary begins the names of folders of clones that are not complete.
	temporary = ".lockstep-clone-"
	// maxSubmodules is how deep submodules of submodules are cloned.
	maxSubmodules = 10
	// namedRevisions is how many branches and tags an error lists.
	namedRevisions = 10
)

// Cloner clones projects into a folder.
type Cloner struct {
	Home        string
	Credentials *Credentials
	// Progress receives what servers report, for people.
	Progress io.Writer
}

// New returns a cloner. It sets the HTTP client of go-git, which the process has once.
func New(home string, credentials *Credentials, progress io.Writer) *Cloner {
	base, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		base = &http.Transport{Proxy: http.ProxyFromEnvironment}
	}
	base = base.Clone()
	base.TLSClientConfig = &tls.Config{RootCAs: credentials.authorities, MinVersion: tls.VersionTLS12}
	web := githttp.NewClient(&http.Client{Transport: base})
	client.InstallProtocol("https", web)
	client.InstallProtocol("http", web)
	client.InstallProtocol("file", nil) // a submodule must not read the files of this container
	return &Cloner{Home: home, Credentials: credentials, Progress: progress}
}

// Outcome is what became of a project.
type Outcome string

// Outcomes.
const (
	Cloned Outcome = "cloned"
	// Kept means that the folder exists and is not empty.
	Kept Outcome = "kept"
)

// RemoveIncomplete removes what clones that were interrupted have left.
func (c *Cloner) RemoveIncomplete() error {
	left, err := filepath.Glob(filepath.Join(c.Home, temporary+"*"))
	if err != nil {
		return fmt.Errorf("find incomplete clones: %w", err)
	}
	for _, folder := range left {
		if err := os.RemoveAll(folder); err != nil {
			return fmt.Errorf("remove an incomplete clone: %w", err)
		}
	}
	return nil
}

// Clone clones a project, unless its folder exists and is not empty. The error says what to do about it.
func (c *Cloner) Clone(ctx context.Context, p workspaceagent.Project) (outcome Outcome, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("clone %s from %s: %w", p.Name, workspaceagent.Redact(p.URL), err)
		}
	}()
	if err := p.Validate(); err != nil {
		return "", err
	}
	target := filepath.Join(c.Home, p.Path())
	entries, err := os.ReadDir(target)
	switch {
	case err == nil && len(entries) > 0:
		return Kept, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", err //nolint:wrapcheck // it names the folder
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return "", err //nolint:wrapcheck // it names the folder
	}
	incomplete, err := os.MkdirTemp(c.Home, temporary)
	if err != nil {
		return "", err //nolint:wrapcheck // it names the folder
	}
	defer func() { err = errors.Join(err, os.RemoveAll(incomplete)) }()
	inside := filepath.Join(incomplete, "clone")
	if err := c.cloneTo(ctx, p, inside); err != nil {
		return "", explain(p.URL, err)
	}
	// An empty folder is replaced; one that has got files meanwhile is not.
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err //nolint:wrapcheck // it names the folder
	}
	if err := os.Rename(inside, target); err != nil {
		return "", err //nolint:wrapcheck // it names the folder
	}
	return Cloned, nil
}

func (c *Cloner) cloneTo(ctx context.Context, p workspaceagent.Project, folder string) error {
	auth, err := c.Credentials.method(p.URL)
	if err != nil {
		return err
	}
	options := &git.CloneOptions{
		URL: p.URL, Auth: auth, RemoteName: remoteName, Progress: c.Progress, Depth: p.Depth,
		Tags: git.TagFollowing, SingleBranch: p.Depth > 0,
	}
	commit, err := c.revision(ctx, p, auth, options)
	if err != nil {
		return err
	}
	repository, err := git.PlainCloneContext(ctx, folder, false, options)
	if err != nil {
		return err //nolint:wrapcheck // explained by the caller
	}
	worktree, err := repository.Worktree()
	if err != nil {
		return err //nolint:wrapcheck // explained by the caller
	}
	if commit != plumbing.ZeroHash {
		if err := worktree.Checkout(&git.CheckoutOptions{Hash: commit}); err != nil {
			return fmt.Errorf("check out the commit %s: %w; is it in a branch or tag?", commit, err)
		}
	}
	for name, address := range p.Remotes {
		if name == remoteName {
			continue
		}
		if _, err := repository.CreateRemote(&config.RemoteConfig{Name: name, URLs: []string{address}}); err != nil {
			return fmt.Errorf("remote %q: %w", name, err)
		}
	}
	return c.submodules(ctx, worktree, p.Depth, maxSubmodules)
}

// revision sets the branch or tag to clone, or returns the commit to check out.
func (c *Cloner) revision(
	ctx context.Context, p workspaceagent.Project, auth transport.AuthMethod, options *git.CloneOptions,
) (plumbing.Hash, error) {
	if p.Revision == "" {
		return plumbing.ZeroHash, nil
	}
	remote := git.NewRemote(nil, &config.RemoteConfig{Name: remoteName, URLs: []string{p.URL}})
	references, err := remote.ListContext(ctx, &git.ListOptions{Auth: auth})
	if err != nil {
		return plumbing.ZeroHash, err //nolint:wrapcheck // explained by the caller
	}
	var known []string
	for _, name := range []plumbing.ReferenceName{
		plumbing.NewBranchReferenceName(p.Revision), plumbing.NewTagReferenceName(p.Revision),
	} {
		for _, reference := range references {
			if reference.Name() == name {
				options.ReferenceName = name
				return plumbing.ZeroHash, nil
			}
		}
	}
	if plumbing.IsHash(p.Revision) {
		options.Depth, options.SingleBranch, options.NoCheckout = 0, false, true
		return plumbing.NewHash(p.Revision), nil
	}
	for _, reference := range references {
		if reference.Name().IsBranch() || reference.Name().IsTag() {
			known = append(known, reference.Name().Short())
		}
	}
	slices.Sort(known)
	if len(known) > namedRevisions {
		known = append(known[:namedRevisions], "…")
	}
	return plumbing.ZeroHash, fmt.Errorf("revision %q is not a branch, a tag or the full id of a commit; there are %s",
		p.Revision, strings.Join(known, ", "))
}

// submodules clones those of a repository, each with the credentials of its own host.
func (c *Cloner) submodules(ctx context.Context, worktree *git.Worktree, depth, levels int) error {
	modules, err := worktree.Submodules()
	if err != nil {
		return fmt.Errorf("read .gitmodules: %w", err)
	}
	if len(modules) > 0 && levels == 0 {
		return fmt.Errorf("submodules are more than %d levels deep", maxSubmodules)
	}
	for _, module := range modules {
		if err := c.submodule(ctx, module, depth, levels); err != nil {
			return fmt.Errorf("submodule %s: %w", module.Config().Name, err)
		}
	}
	return nil
}

func (c *Cloner) submodule(ctx context.Context, module *git.Submodule, depth, levels int) error {
	if err := module.Init(); err != nil {
		return err //nolint:wrapcheck // the caller names the submodule
	}
	repository, err := module.Repository() // resolves a relative URL
	if err != nil {
		return err //nolint:wrapcheck // the caller names the submodule
	}
	remote, err := repository.Remote(remoteName)
	if err != nil {
		return err //nolint:wrapcheck // the caller names the submodule
	}
	address := remote.Config().URLs[0]
	if err := workspaceagent.CheckURL(address); err != nil {
		return err
	}
	auth, err := c.Credentials.method(address)
	if err != nil {
		return err
	}
	if err := module.UpdateContext(ctx, &git.SubmoduleUpdateOptions{Auth: auth, Depth: depth}); err != nil {
		return explain(address, err)
	}
	inner, err := repository.Worktree()
	if err != nil {
		return err //nolint:wrapcheck // the caller names the submodule
	}
	return c.submodules(ctx, inner, depth, levels-1)
}

// explain adds what a person can do about an error of go-git.
func explain(address string, err error) error {
	host := address
	if endpoint, parse := transport.NewEndpoint(address); parse == nil {
		host = endpoint.Host
	}
	switch {
	case errors.Is(err, transport.ErrAuthenticationRequired):
		return fmt.Errorf("%s asks for an account: add a line for it to the secret file %s: %w", host,
			workspaceagent.GitCredentials, err)
	case errors.Is(err, transport.ErrAuthorizationFailed):
		return fmt.Errorf("%s refuses the account of the secret file %s: %w", host, workspaceagent.GitCredentials, err)
	case errors.Is(err, transport.ErrRepositoryNotFound):
		return fmt.Errorf("there is no such repository, or the account may not read it: %w", err)
	case strings.Contains(err.Error(), "certificate signed by unknown authority"):
		return fmt.Errorf("the certificate of %s is not trusted: add its authority as the secret file %s: %w",
			host, workspaceagent.Authorities, err)
	default:
		return err
	}
}
