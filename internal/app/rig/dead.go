package rig

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/go-sql-driver/mysql"

	"github.com/halfbox/halfbox/configs"
)

// FolderPrefix begins the name of a run's folder among the system's temporary ones.
const FolderPrefix = "halfbox-compare-"

// ownerFile is in the run's folder and says whose it is.
const ownerFile = "owner.json"

// owner is the process of a run and the engines that it uses, without secrets.
type owner struct {
	Run         string   `json:"run"`
	Host        string   `json:"host"`
	PID         int      `json:"pid"`
	MySQL       []string `json:"mysql,omitempty"` // addresses
	NameServers []string `json:"name_servers,omitempty"`
}

// owner is this process.
func (e *Engines) owner() (o owner, err error) {
	o = owner{Run: e.run, PID: os.Getpid(), NameServers: e.Config.RocketMQ.NameServers}
	if o.Host, err = os.Hostname(); err != nil {
		return o, err
	}
	for _, dsn := range e.dsns() {
		cfg, err := mysql.ParseDSN(string(dsn))
		if err != nil {
			return o, err
		}
		o.MySQL = append(o.MySQL, cfg.Addr)
	}
	return o, nil
}

// dsns are those of the database servers; none for SQLite.
func (e *Engines) dsns() []configs.Secret {
	if !e.MySQL() {
		return nil
	}
	return []configs.Secret{e.Config.Database.OrderDSN, e.Config.Database.PointsDSN}
}

// Claim notes in the run's folder whose it is, so that SweepDead of a later run can remove what this one leaves if it is
// killed.
func (e *Engines) Claim() error {
	o, err := e.owner()
	if err != nil {
		return err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(e.Dir, ownerFile), text, 0o600)
}

// gone tells that the owner was a process of this machine and is no more. A number that another process has taken since
// keeps its leftovers.
func (o owner) gone(host string) bool {
	if o.Host != host || o.PID <= 0 {
		return false
	}
	p, err := os.FindProcess(o.PID)
	if err != nil {
		return true
	}
	defer func() { _ = p.Release() }()
	return runtime.GOOS != "windows" && errors.Is(p.Signal(syscall.Signal(0)), os.ErrProcessDone)
}

// runName is what New makes: the name of a schema is put together from it.
var runName = regexp.MustCompile(`^` + Prefix + `[0-9a-f]{8}$`)

// SweepDead removes what runs of this machine have left that were killed: their schemas, topics and groups when they
// used the same engines, and their folders under temp. It returns their names. Runs on other engines are left for a run
// on those.
func (e *Engines) SweepDead(ctx context.Context, temp string) (removed []string, err error) {
	me, err := e.owner()
	if err != nil {
		return nil, err
	}
	folders, err := filepath.Glob(filepath.Join(temp, FolderPrefix+"*"))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, dir := range folders {
		var o owner
		text, err := os.ReadFile(filepath.Join(dir, ownerFile))
		if err != nil || json.Unmarshal(text, &o) != nil || !runName.MatchString(o.Run) || !o.gone(me.Host) {
			continue
		}
		if !slices.Equal(o.MySQL, me.MySQL) && len(o.MySQL) > 0 || !slices.Equal(o.NameServers, me.NameServers) && len(o.NameServers) > 0 {
			continue
		}
		if err := e.sweepDead(ctx, o); err != nil {
			errs = append(errs, fmt.Errorf("what run %s left when it was killed: %w", o.Run, err))
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, o.Run)
	}
	return removed, errors.Join(errs...)
}

// sweepDead removes what a run has on the engines, which are those of e where it used any.
func (e *Engines) sweepDead(ctx context.Context, o owner) error {
	if len(o.MySQL) > 0 {
		for _, dsn := range e.dsns() {
			if err := e.dropSchemas(ctx, dsn, o.Run); err != nil {
				return err
			}
		}
	}
	if len(o.NameServers) > 0 {
		return e.sweep(ctx, o.Run)
	}
	return nil
}

// dropSchemas drops the schemas of a run.
func (e *Engines) dropSchemas(ctx context.Context, dsn configs.Secret, run string) error {
	connector, err := e.serverOf(dsn)
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	defer func() { _ = db.Close() }()
	names, err := schemasOf(ctx, db, run)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := db.ExecContext(ctx, "DROP DATABASE IF EXISTS `"+strings.ReplaceAll(name, "`", "``")+"`"); err != nil {
			return fmt.Errorf("schema %s is left: %w", name, err)
		}
	}
	return nil
}

func schemasOf(ctx context.Context, db *sql.DB, run string) (names []string, err error) {
	rows, err := db.QueryContext(ctx, "SELECT schema_name FROM information_schema.schemata WHERE LEFT(schema_name, ?) = ?", len(run)+1, run+"_")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}
