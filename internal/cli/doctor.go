package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/configs"
	"github.com/halfbox/halfbox/internal/app"
	"github.com/halfbox/halfbox/internal/doctor"
	"github.com/halfbox/halfbox/internal/remoting"
)

func newDoctor(o *options) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the engines before the service does; exit 1 when something is wrong",
		Long: `Check the configuration and the engines it names: databases (version, time zone, isolation, durability, clock,
tables, indexes) and RocketMQ (name servers, brokers, topics, and the order in which deadlines must follow one another).
Each finding comes with its remedy. It reads and changes nothing.`,
		Example: "  halfbox doctor --config real.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			findings, err := examine(cmd.Context(), o)
			if err != nil {
				return err
			}
			if err := out.print(cmd.OutOrStdout(), findings, func() [][]string { return findingsTable(findings) }); err != nil {
				return err
			}
			for _, f := range findings {
				if f.Verdict == doctor.Bad {
					return &runError{errors.New("something is wrong, see above")}
				}
			}
			return nil
		},
	}
	out.flag(cmd)
	return cmd
}

// doctorTimeout bounds the whole examination.
const doctorTimeout = time.Minute

func examine(ctx context.Context, o *options) (_ []doctor.Finding, err error) {
	cfg, err := o.load()
	if err != nil {
		return nil, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	check := doctor.Config{Times: doctor.Times{Local: cfg.Txmsg.LocalTimeout, Grace: cfg.Checkback.Grace}}
	for _, m := range app.MigratedDatabases() {
		db, err := m.Look(cfg)
		var setup *app.SetupError
		if errors.As(err, &setup) && cfg.Database.Driver == "mysql" {
			check.Databases = append(check.Databases, doctor.Database{Name: m.Name, Unusable: setup.Problem, Remedy: setup.Remedy})
			continue
		}
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		check.Databases = append(check.Databases, doctor.Database{Name: m.Name, DB: db, Lines: m.Lines, Plans: plans(m.Name)})
	}
	if !cfg.RocketMQ.Embedded() {
		check.Cluster = cluster(cfg.RocketMQ)
		check.Cluster.DiscardedTopic, check.Cluster.RescueGroup = checkback.DiscardedTopic, cfg.Rescue.Group
	}
	return doctor.Run(ctx, check), nil
}

func cluster(c configs.RocketMQ) *doctor.Cluster {
	return &doctor.Cluster{
		NameServers: c.NameServers, Credentials: remoting.Credentials{AccessKey: c.AccessKey, SecretKey: string(c.SecretKey)},
		Topics: []string{c.OrderTopic}, CreatesTopics: c.CreateTopics, Groups: []string{c.PointsGroup},
	}
}

// plans are the queries that must not scan a table, by database.
func plans(database string) []doctor.Plan {
	if database == "points" {
		return []doctor.Plan{
			{Index: "uk_msg_id", Query: "SELECT id FROM t_points_record WHERE msg_id > 'x'"},
			{Index: "uk_order_type", Query: "SELECT id FROM t_points_record WHERE order_no = 'x' AND type > 'EARN'"},
			{Index: "idx_user_id", Query: "SELECT id FROM t_points_record WHERE user_id = 1 ORDER BY id DESC LIMIT 100"},
		}
	}
	return []doctor.Plan{
		{Index: "uk_order_no", Query: "SELECT id FROM t_order WHERE order_no > 'x'"},
		{Index: "uk_msg_id", Query: "SELECT id FROM t_order WHERE msg_id > 'x'"},
		{Index: "uk_idempotency", Query: "SELECT id FROM t_order WHERE user_id = 1 AND idempotency_key > 'x'"},
		{Index: "idx_status_next_retry", Query: "SELECT id FROM t_event_record WHERE status = 'WAIT' AND sink = 'x' AND next_retry_time <= '2000-01-01' ORDER BY next_retry_time, id LIMIT 20"},
		{Index: "idx_status_next_retry", Query: "SELECT id FROM t_event_record WHERE status = 'SENDING' AND lease_until <= '2000-01-01' LIMIT 20"},
		{Index: "uk_msg_sink", Query: "SELECT id FROM t_event_record WHERE msg_id > 'x'"},
	}
}

func findingsTable(findings []doctor.Finding) [][]string {
	rows := [][]string{{"", "CHECK", "FOUND"}}
	for _, f := range findings {
		rows = append(rows, []string{string(f.Verdict), f.Check, f.Detail})
		if f.Remedy != "" {
			rows = append(rows, []string{"", "", "-> " + f.Remedy})
		}
	}
	return rows
}
