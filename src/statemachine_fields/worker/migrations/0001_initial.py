from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='RunStatistics',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('machine', models.CharField(max_length=200, verbose_name='machine')),
                ('state', models.CharField(max_length=200, verbose_name='state')),
                ('period', models.DateTimeField(verbose_name='hour')),
                ('kind', models.CharField(max_length=50, verbose_name='kind')),
                ('count', models.BigIntegerField(db_default=0, default=0, verbose_name='count')),
                ('seconds', models.FloatField(db_default=0, default=0, verbose_name='seconds in handlers')),
            ],
            options={
                'verbose_name': 'run statistics',
                'verbose_name_plural': 'run statistics',
                'ordering': ['-period', 'machine', 'state', 'kind'],
                'default_permissions': ('view',),
                'constraints': [models.UniqueConstraint(fields=('period', 'machine', 'state', 'kind'), name='statemachine_worker_one_kind')],
            },
        ),
    ]
